"""A desktop window that answers while the model writes: tkinter and the engine, no server.

python examples/desktop.py target.gguf draft.gguf
"""

from __future__ import annotations

import sys
import threading
import tkinter as tk
from pathlib import Path
from tkinter.scrolledtext import ScrolledText

from dyspec_edge import Engine, EngineConfig


class Window:
    """A line to type in, and what the model makes of it."""

    def __init__(self, root: tk.Tk, engine: Engine) -> None:
        self.root, self.engine = root, engine
        self.answer = ScrolledText(root, wrap="word")
        self.entry = tk.Entry(root)
        self.answer.pack(fill="both", expand=True)
        self.entry.pack(fill="x")
        self.entry.bind("<Return>", lambda _event: self.ask())

    def ask(self) -> None:
        """Answer what was typed; the window stays alive meanwhile."""
        text = self.entry.get()
        self.entry.delete(0, "end")
        self.answer.insert("end", f"\n> {text}\n")
        threading.Thread(target=self._write, args=(text,), daemon=True).start()

    def _write(self, text: str) -> None:
        for chunk in self.engine.stream(text, max_tokens=512):
            self.root.after(0, self.answer.insert, "end", chunk.text)


if __name__ == "__main__":
    target, *draft = map(Path, sys.argv[1:])
    with Engine.load(EngineConfig(target, *draft)) as engine:
        window = tk.Tk()
        window.title("dyspec-edge")
        Window(window, engine)
        window.mainloop()
        engine.cancel()
