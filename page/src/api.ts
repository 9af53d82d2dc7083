// The server's address as the page uses it: a streamed chat completion, the model, its properties.

import { EventSourceParserStream } from "eventsource-parser/stream";
import type { Step } from "./step";

export interface ChatMessage {
  role: "user" | "assistant";
  content: string;
}

/** What the user has set; what is undefined is left to the server. */
export interface Settings {
  temperature?: number;
  maxTokens?: number;
  seed?: number;
  speculation: boolean;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
}

export interface Chunk {
  choices?: {
    delta?: { content?: string | null; reasoning_content?: string | null };
    finish_reason?: string | null;
  }[];
  usage?: Usage | null;
  step?: Step | null;
  error?: { message?: string };
}

export interface Server {
  model: string;
  contextSize?: number;
}

/** What went wrong, in words for people. */
export class ServerError extends Error {
  constructor(
    message: string,
    /** Seconds to wait before another try; undefined where the server named none. */
    readonly retryAfter?: number,
    readonly wantsKey = false,
  ) {
    super(message);
  }
}

const GONE = "The server does not answer. Is “dyspec-edge serve” still running?";
const BROKEN = "The connection to the server broke in mid-reply. What had come is kept.";

function waitOf(response: Response): number | undefined {
  const value = response.headers.get("Retry-After");
  if (value === null) return undefined;
  const seconds = Number(value);
  if (Number.isFinite(seconds)) return Math.max(0, seconds);
  const date = Date.parse(value);
  return Number.isNaN(date) ? undefined : Math.max(0, Math.ceil((date - Date.now()) / 1000));
}

async function refusal(response: Response): Promise<ServerError> {
  const body = (await response.json().catch(() => undefined)) as { error?: { message?: string } } | undefined;
  const reason = body?.error?.message ?? response.statusText;
  const because = reason ? `: ${reason}` : ".";
  switch (response.status) {
    case 401:
    case 403:
      return new ServerError("The server wants an API key, or another one. Type it in the settings.", undefined, true);
    case 429:
      return new ServerError(`The server is busy with other requests${because}`, waitOf(response));
    case 503:
      return new ServerError(`The server is not ready${because}`, waitOf(response));
  }
  if (response.status >= 500) return new ServerError(`The server failed${because}`, waitOf(response));
  return new ServerError(`The server refused the request${because}`);
}

function headers(key: string): HeadersInit {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function answered(path: string, options: RequestInit): Promise<Response> {
  const response = await fetch(path, options).catch((error: unknown) => {
    if (options.signal?.aborted) throw error;
    throw new ServerError(GONE);
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Names the model and its context, as far as the server tells. */
export async function describeServer(key: string): Promise<Server> {
  const options = { headers: headers(key) };
  const models = (await (await answered("v1/models", options)).json()) as { data?: { id?: string }[] };
  const props = (await (await answered("props", options)).json()) as {
    default_generation_settings?: { n_ctx?: number };
  };
  return { model: models.data?.[0]?.id ?? "", contextSize: props.default_generation_settings?.n_ctx };
}

function requestBody(model: string, messages: ChatMessage[], settings: Settings): string {
  return JSON.stringify({
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true, include_tree: true },
    temperature: settings.temperature,
    max_tokens: settings.maxTokens,
    seed: settings.seed,
    speculation: settings.speculation ? undefined : "off",
  });
}

/** Yields a reply's chunks; ends early when the signal aborts; throws ServerError. */
export async function* streamChat(
  request: { model: string; messages: ChatMessage[]; settings: Settings; key: string },
  signal: AbortSignal,
): AsyncGenerator<Chunk> {
  const response = await answered("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(request.key), "Content-Type": "application/json" },
    body: requestBody(request.model, request.messages, request.settings),
    signal,
  });
  if (!response.body) throw new ServerError(BROKEN);
  const events = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());
  const reader = events.getReader();
  for (;;) {
    const { done, value } = await reader.read().catch((error: unknown) => {
      if (signal.aborted) throw error;
      throw new ServerError(BROKEN);
    });
    if (done) throw new ServerError(BROKEN);
    if (value.data === "[DONE]") return;
    const chunk = JSON.parse(value.data) as Chunk;
    if (chunk.error) throw new ServerError(chunk.error.message ?? "The server failed in mid-reply.");
    yield chunk;
  }
}
