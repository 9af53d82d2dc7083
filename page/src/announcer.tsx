// What a screen reader hears of a reply: whole sentences as they are finished, then how it ended.

import { useEffect, useRef } from "preact/hooks";
import type { Reply } from "./conversation";

const SENTENCE_END = /[.!?:;。！？](?=\s)|\n/g;

const ENDINGS: Record<Reply["state"], string> = {
  streaming: "",
  done: "Reply finished.",
  stopped: "Reply stopped.",
  cut: "Reply cut at the limit of tokens.",
  failed: "",
};

function finishedLength(reply: Reply): number {
  if (reply.state !== "streaming") return reply.text.length;
  const last = [...reply.text.matchAll(SENTENCE_END)].at(-1);
  return last ? last.index + 1 : 0;
}

export function Announcer({ reply }: { reply: Reply | undefined }) {
  const region = useRef<HTMLDivElement>(null);
  const told = useRef({ length: 0, state: "done" as Reply["state"] });
  useEffect(() => {
    const element = region.current;
    if (!element || !reply) return;
    const say = (text: string) => {
      const line = document.createElement("p");
      line.textContent = text;
      if (text.trim()) element.append(line);
    };
    const starts = reply.state === "streaming" && told.current.state !== "streaming";
    if (starts || reply.text.length < told.current.length) {
      element.replaceChildren();
      told.current.length = 0;
    }
    const length = finishedLength(reply);
    if (length > told.current.length) say(reply.text.slice(told.current.length, length));
    if (reply.state !== told.current.state) say(ENDINGS[reply.state]);
    told.current = { length: Math.max(length, told.current.length), state: reply.state };
  }, [reply]);
  return <div class="unseen" role="log" aria-live="polite" aria-label="Reply" ref={region} />;
}
