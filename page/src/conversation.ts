// The conversation: turns in memory, one reply at a time.  Knows nothing of drawing.

import { ServerError, streamChat, type ChatMessage, type Settings, type Usage } from "./api";
import type { Step } from "./step";

export interface Question {
  role: "user";
  text: string;
}

export interface Reply {
  role: "assistant";
  text: string;
  thoughts: string;
  steps: Step[];
  state: "streaming" | "done" | "stopped" | "cut" | "failed";
  usage?: Usage;
  error?: ServerError;
}

export type Turn = Question | Reply;

export interface Connection {
  model: string;
  key: string;
  settings: Settings;
}

function asMessages(turns: readonly Turn[]): ChatMessage[] {
  return turns.map(({ role, text }) => ({ role, content: text }));
}

function withStep(steps: Step[], step: Step): Step[] {
  return steps.at(-1)?.index === step.index ? [...steps.slice(0, -1), step] : [...steps, step];
}

export class Conversation {
  turns: readonly Turn[] = [];
  private running: AbortController | undefined;

  constructor(private readonly onChange: () => void) {}

  get busy(): boolean {
    return this.running !== undefined;
  }

  ask(text: string, connection: Connection): Promise<void> {
    this.turns = [...this.turns, { role: "user", text }];
    return this.answer(connection);
  }

  /** Replaces the question at `at`; what came after it is dropped. */
  edit(at: number, text: string, connection: Connection): Promise<void> {
    this.turns = this.turns.slice(0, at);
    return this.ask(text, connection);
  }

  /** A new reply in the place of the one at `at`. */
  regenerate(at: number, connection: Connection): Promise<void> {
    this.turns = this.turns.slice(0, at);
    return this.answer(connection);
  }

  stop(): void {
    this.running?.abort();
  }

  clear(): void {
    this.stop();
    this.running = undefined;
    this.turns = [];
    this.onChange();
  }

  private async answer(connection: Connection): Promise<void> {
    this.stop();
    const running = new AbortController();
    this.running = running;
    const messages = asMessages(this.turns);
    const at = this.turns.length;
    let reply: Reply = { role: "assistant", text: "", thoughts: "", steps: [], state: "streaming" };
    const show = (change: Partial<Reply>) => {
      reply = { ...reply, ...change };
      // A cleared or edited conversation has no place for what still arrives.
      if (this.running === running) {
        this.turns = [...this.turns.slice(0, at), reply];
        this.onChange();
      }
    };
    show({});
    try {
      for await (const chunk of streamChat({ ...connection, messages }, running.signal)) {
        const choice = chunk.choices?.[0];
        show({
          text: reply.text + (choice?.delta?.content ?? ""),
          thoughts: reply.thoughts + (choice?.delta?.reasoning_content ?? ""),
          steps: chunk.step ? withStep(reply.steps, chunk.step) : reply.steps,
          usage: chunk.usage ?? reply.usage,
          state: choice?.finish_reason === "length" ? "cut" : reply.state,
        });
      }
      show({ state: reply.state === "cut" ? "cut" : "done" });
    } catch (error) {
      if (running.signal.aborted) show({ state: "stopped" });
      else if (error instanceof ServerError) show({ state: "failed", error });
      else show({ state: "failed", error: new ServerError(`The server sent what the page cannot read: ${error}`) });
    }
    if (this.running === running) {
      this.running = undefined;
      this.onChange();
    }
  }
}
