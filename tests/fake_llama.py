"""A stand-in for llama.cpp's one-shot programs and server: their options and output, no model.

It is fastest at --spec-draft-n-max 8 with --spec-draft-p-min 0.5.  Calls are kept in FAKE_CALLS.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

WORDS = sys.argv[1:]


def option(name: str, default: str = "") -> str:
    """The value of an option."""
    return WORDS[WORDS.index(name) + 1] if name in WORDS else default


def seconds() -> float:
    """What the reply takes."""
    n_max = int(option("--spec-draft-n-max", "8"))
    p_min = float(option("--spec-draft-p-min", "0.5"))
    return 1 + abs(n_max - 8) / 8 + abs(p_min - 0.5)


def one_shot() -> None:
    """Reads a file; one word is one token."""
    text = Path(option("-f")).read_text(encoding="utf-8").removesuffix("\n")
    reply = " one" * (int(option("-n")) + 1)
    sys.stdout.write(f"\n\n{text}{reply}\n\n\n\n")
    sys.stderr.write(
        f"0.01 I encoded {len(text.split()):4d} tokens in    0.100 seconds, speed:    1.000 t/s\n"
        f"0.01 I decoded {len(reply.split()):4d} tokens in {seconds():8.3f} seconds, speed: 1 t/s\n"
        "0.01 I n_drafted = 9\n"
        "0.01 I n_accept  = 6\n"
    )


def serve() -> None:
    """A server for ever."""
    # Here, since the import takes longer than all that the one-shot programs do.
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        """Loading at first, as the real one."""

        ready_after = time.monotonic() + 0.15

        def do_GET(self) -> None:
            """/health."""
            self.answer(200 if time.monotonic() > self.ready_after else 503, {})

        def do_POST(self) -> None:
            """/completion."""
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            num = request["n_predict"]
            timings = {"predicted_n": num, "predicted_ms": 1e3 * seconds(), "draft_n": 9}
            timings["draft_n_accepted"] = 6
            reply = {"content": " one" * num, "tokens": [7] * num, "stop_type": "limit"}
            reply |= {"tokens_evaluated": len(request["prompt"]), "timings": timings}
            self.answer(200, reply)

        def answer(self, status: int, body: object) -> None:
            """JSON."""
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    HTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    with Path(os.environ["FAKE_CALLS"]).open("a", encoding="utf-8") as calls:
        calls.write(" ".join(WORDS) + "\n")
    if "broken.gguf" in WORDS:
        sys.exit("failed to load model 'broken.gguf'")
    if "-lv" in WORDS:
        features = os.environ["FAKE_FEATURES"]
        sys.exit(f"0.0 T system_info: n_threads = 2 (n_threads_batch = 2) / 2 | {features}\nx")
    if "--port" in WORDS:
        serve()
    one_shot()
