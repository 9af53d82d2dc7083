// The page at `/`: the conversation beside the token trees of the reply that is looked at.

import { render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Announcer } from "./announcer";
import { describeServer, ServerError, type Server, type Settings } from "./api";
import { Conversation, type Connection, type Reply, type Turn } from "./conversation";
import { QuestionView, ReplyView } from "./message";
import { SettingsDialog, storedKey } from "./settings";
import { StepPanel } from "./step_panel";

/** A conversation whose changes are drawn at most once a frame. */
function useConversation(): Conversation {
  const [, setFrame] = useState(0);
  const conversation = useRef<Conversation | undefined>(undefined);
  conversation.current ??= new Conversation(() => requestAnimationFrame((time) => setFrame(time)));
  return conversation.current;
}

/** Asked again whenever `attempt` changes, until the server has answered. */
function useServer(key: string, attempt: number): { server: Server | undefined; problem: string } {
  const [server, setServer] = useState<Server>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    describeServer(key).then(
      (answer) => {
        setServer(answer);
        setProblem("");
      },
      (error: unknown) => setProblem(error instanceof ServerError ? error.message : String(error)),
    );
  }, [key, server ? 0 : attempt]);
  return { server, problem };
}

function Composer({ busy, onSend, onStop }: { busy: boolean; onSend: (text: string) => void; onStop: () => void }) {
  const [text, setText] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  useLayoutEffect(() => {
    const element = field.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${Math.min(200, element.scrollHeight + 2)}px`;
  }, [text]);
  const send = () => {
    if (busy || !text.trim()) return;
    onSend(text);
    setText("");
    field.current?.focus();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={field}
        aria-label="Message"
        placeholder="Write a message"
        rows={1}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          send();
        }}
      />
      {busy ? (
        <button
          type="button"
          class="stop"
          title="Escape does the same"
          onClick={() => {
            onStop();
            field.current?.focus();
          }}
        >
          Stop
        </button>
      ) : (
        <button type="submit" class="primary" disabled={!text.trim()}>
          Send
        </button>
      )}
    </form>
  );
}

/** Scrolls with what arrives, unless the reader has scrolled up. */
function useStickyScroll(turns: readonly Turn[]) {
  const element = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (atEnd.current) element.current?.scrollTo({ top: element.current.scrollHeight });
  }, [turns]);
  const onScroll = () => {
    const box = element.current;
    if (box) atEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  };
  return { element, onScroll };
}

interface LogProps {
  conversation: Conversation;
  connection: Connection;
  shown: number;
  onShow: (at: number | null) => void;
  onSettings: () => void;
}

function Log({ conversation, connection, shown, onShow, onSettings }: LogProps) {
  const { turns } = conversation;
  const { element, onScroll } = useStickyScroll(turns);
  // The button that was pressed goes away: keep the keyboard in the conversation.
  const edit = (at: number, text: string) => {
    element.current?.focus();
    onShow(null);
    void conversation.edit(at, text, connection);
  };
  const regenerate = (at: number) => {
    element.current?.focus();
    onShow(null);
    void conversation.regenerate(at, connection);
  };
  return (
    <div class="log" ref={element} onScroll={onScroll} tabindex={0} role="region" aria-label="Conversation">
      {turns.length === 0 && (
        <p class="empty">
          Ask something. While the reply comes, the tree of guesses behind each of its steps is drawn beside it.
        </p>
      )}
      {turns.map((turn, at) => (
        <article key={at} class={turn.role} aria-label={turn.role === "user" ? "You" : "Reply"}>
          {turn.role === "user" ? (
            <QuestionView turn={turn} onEdit={(text) => edit(at, text)} />
          ) : (
            <ReplyView
              turn={turn}
              shown={at === shown}
              onShow={() => onShow(at)}
              onRegenerate={() => regenerate(at)}
              onSettings={onSettings}
            />
          )}
        </article>
      ))}
    </div>
  );
}

function TreePanel({ reply }: { reply: Reply | undefined }) {
  const [chosen, setChosen] = useState<number | null>(null);
  if (!reply) return <p class="empty">Here the token tree of each step appears.</p>;
  return <StepPanel steps={reply.steps} live={reply.state === "streaming"} chosen={chosen} onChoose={setChosen} />;
}

/** The reply whose trees are shown: the one asked for, else the newest. */
function shownReply(turns: readonly Turn[], asked: number | null): number {
  if (asked !== null && turns[asked]?.role === "assistant") return asked;
  return turns.findLastIndex((turn) => turn.role === "assistant");
}

type View = "chat" | "trees";

function Header(props: {
  about: string;
  view: View;
  onView: (view: View) => void;
  onNew: () => void;
  onSettings: () => void;
}) {
  const tab = (view: View, name: string) => (
    <button type="button" aria-pressed={props.view === view} onClick={() => props.onView(view)}>
      {name}
    </button>
  );
  return (
    <header>
      <h1>dyspec-edge</h1>
      <p class="muted about" role="status">
        {props.about}
      </p>
      <div class="switch views" role="group" aria-label="View">
        {tab("chat", "Chat")}
        {tab("trees", "Trees")}
      </div>
      <button type="button" onClick={props.onNew}>
        New
      </button>
      <button type="button" onClick={props.onSettings}>
        Settings
      </button>
    </header>
  );
}

function ChatPage() {
  const conversation = useConversation();
  const [settings, setSettings] = useState<Settings>({ speculation: true });
  const [key, setKey] = useState(storedKey);
  const [asked, setAsked] = useState<number | null>(null);
  const [view, setView] = useState<View>("chat");
  const [dialogOpen, setDialogOpen] = useState(false);
  const { server, problem } = useServer(key, conversation.turns.length);
  const connection = { model: server?.model ?? "", key, settings };
  const shown = shownReply(conversation.turns, asked);
  const newest = conversation.turns.at(-1);
  const about = server ? [server.model, server.contextSize && `${server.contextSize} tokens of context`] : [];

  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) conversation.stop();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [conversation]);

  const send = (text: string) => {
    setAsked(null);
    void conversation.ask(text, connection);
  };
  const show = (at: number | null) => {
    setAsked(at);
    if (at !== null) setView("trees");
  };
  return (
    <div class={`chat view-${view}`}>
      <Header
        about={problem || about.filter(Boolean).join(" · ")}
        view={view}
        onView={setView}
        onNew={() => conversation.clear()}
        onSettings={() => setDialogOpen(true)}
      />
      <main>
        <section class="talk" aria-label="Chat">
          <Log
            conversation={conversation}
            connection={connection}
            shown={shown}
            onShow={show}
            onSettings={() => setDialogOpen(true)}
          />
          <Composer busy={conversation.busy} onSend={send} onStop={() => conversation.stop()} />
        </section>
        <section class="panel" aria-label="Token trees">
          <h2>Token trees</h2>
          <TreePanel key={shown} reply={conversation.turns[shown] as Reply | undefined} />
        </section>
      </main>
      <Announcer reply={newest?.role === "assistant" ? newest : undefined} />
      {dialogOpen && (
        <SettingsDialog
          settings={settings}
          apiKey={key}
          onSave={(newSettings, newKey) => {
            setSettings(newSettings);
            setKey(newKey);
          }}
          onClose={() => setDialogOpen(false)}
        />
      )}
    </div>
  );
}

render(<ChatPage />, document.getElementById("page")!);
