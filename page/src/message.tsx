// One turn of the conversation: a question that can be edited, a reply that can be made anew.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ServerError } from "./api";
import type { Question, Reply } from "./conversation";
import { rendered } from "./markdown";
import { totalsOf } from "./step";
import { counted, rate } from "./words";

function Markdown({ text }: { text: string }) {
  const element = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => element.current?.replaceChildren(rendered(text)), [text]);
  return <div class="markdown" ref={element} />;
}

function CopyButton({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  // Browsers give the clipboard only to pages of this machine or over https.
  if (!navigator.clipboard) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button type="button" onClick={copy}>
      {copied ? "Copied" : "Copy"}
    </button>
  );
}

function Editor({ text, onSave, onCancel }: { text: string; onSave: (text: string) => void; onCancel: () => void }) {
  const [edited, setEdited] = useState(text);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        if (edited.trim()) onSave(edited);
      }}
    >
      <textarea
        ref={field}
        aria-label="Edit your message"
        rows={Math.min(10, edited.split("\n").length + 1)}
        value={edited}
        onInput={(event) => setEdited(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Escape" && onCancel()}
      />
      <div class="actions">
        <button type="submit" class="primary">
          Send again
        </button>
        <button type="button" onClick={onCancel}>
          Cancel
        </button>
      </div>
    </form>
  );
}

interface QuestionProps {
  turn: Question;
  onEdit: (text: string) => void;
}

export function QuestionView({ turn, onEdit }: QuestionProps) {
  const [editing, setEditing] = useState(false);
  if (editing) {
    const save = (text: string) => {
      setEditing(false);
      onEdit(text);
    };
    return <Editor text={turn.text} onSave={save} onCancel={() => setEditing(false)} />;
  }
  return (
    <>
      <p class="question">{turn.text}</p>
      <div class="actions">
        <CopyButton text={turn.text} />
        <button type="button" onClick={() => setEditing(true)}>
          Edit
        </button>
      </div>
    </>
  );
}

/** "Try again", as soon as the time that the server asked for is over. */
function RetryButton({ wait, onRetry }: { wait: number; onRetry: () => void }) {
  const [left, setLeft] = useState(Math.ceil(wait));
  useEffect(() => {
    if (left <= 0) return;
    const timer = setTimeout(() => setLeft(left - 1), 1000);
    return () => clearTimeout(timer);
  }, [left]);
  return (
    <button type="button" disabled={left > 0} onClick={onRetry}>
      {left > 0 ? `Try again in ${left} s` : "Try again"}
    </button>
  );
}

interface FailureProps {
  error: ServerError;
  onRetry: () => void;
  onSettings: () => void;
}

function Failure({ error, onRetry, onSettings }: FailureProps) {
  return (
    <div class="failure" role="alert">
      <p>{error.message}</p>
      <div class="actions">
        {error.wantsKey && (
          <button type="button" onClick={onSettings}>
            Settings
          </button>
        )}
        <RetryButton wait={error.retryAfter ?? 0} onRetry={onRetry} />
      </div>
    </div>
  );
}

function figures({ state, steps, usage }: Reply): string {
  const totals = totalsOf(steps);
  const parts = [
    state === "stopped" ? "stopped" : "",
    state === "cut" ? "cut at the limit of tokens" : "",
    usage ? counted(usage.completion_tokens, "token") : totals.tokens ? counted(totals.tokens, "token") : "",
    totals.seconds ? rate(totals.tokens / totals.seconds) : "",
    totals.seconds ? `${totals.tokensPerPass.toFixed(2)} tokens per pass` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

interface ReplyProps {
  turn: Reply;
  shown: boolean;
  onShow: () => void;
  onRegenerate: () => void;
  onSettings: () => void;
}

export function ReplyView({ turn, shown, onShow, onRegenerate, onSettings }: ReplyProps) {
  const streaming = turn.state === "streaming";
  return (
    <>
      {turn.thoughts && (
        <details class="thoughts" open={streaming && !turn.text}>
          <summary>Thoughts</summary>
          <Markdown text={turn.thoughts} />
        </details>
      )}
      <Markdown text={turn.text} />
      {streaming && <span class="cursor" aria-hidden="true" />}
      {turn.error && <Failure error={turn.error} onRetry={onRegenerate} onSettings={onSettings} />}
      {!streaming && (
        <div class="actions">
          {turn.steps.length > 0 && (
            <button type="button" aria-pressed={shown} onClick={onShow}>
              Trees
            </button>
          )}
          {turn.text && <CopyButton text={turn.text} />}
          {!turn.error && (
            <button type="button" onClick={onRegenerate}>
              Regenerate
            </button>
          )}
          <span class="muted">{figures(turn)}</span>
        </div>
      )}
    </>
  );
}
