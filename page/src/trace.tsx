// The page of `dyspec-edge trace`: one finished reply, its document embedded in the file.

import { render } from "preact";
import { useState } from "preact/hooks";
import { acceptedTokens, type Step } from "./step";
import { StepPanel } from "./step_panel";

interface Trace {
  prompt: string;
  model: unknown;
  settings: Record<string, unknown>;
  steps: Step[];
  timings: Record<string, unknown>;
}

function shown(value: unknown): string {
  if (typeof value === "number") return Number.isInteger(value) ? value.toString() : value.toPrecision(4);
  if (typeof value !== "object" || value === null) return String(value);
  return Object.entries(value)
    .map(([name, part]) => `${name} ${shown(part)}`)
    .join(" · ");
}

function Table({ name, values }: { name: string; values: Record<string, unknown> }) {
  const rows = Object.entries(values).filter(([, value]) => value !== null);
  if (rows.length === 0) return null;
  return (
    <details>
      <summary>{name}</summary>
      <dl class="pairs">
        {rows.map(([key, value]) => (
          <div key={key}>
            <dt>{key.replaceAll("_", " ")}</dt>
            <dd>{shown(value)}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

interface ReplyProps {
  steps: Step[];
  chosen: number | null;
  onChoose: (at: number) => void;
}

/** The text, a stretch for each step; the slider is the keyboard's way to the same. */
function ReplyBySteps({ steps, chosen, onChoose }: ReplyProps) {
  return (
    <p class="by-steps">
      {steps.map((step, at) => {
        const accepted = acceptedTokens(step);
        return (
          <span key={at} class={at === chosen ? "stretch chosen" : "stretch"} onClick={() => onChoose(at)}>
            {step.emitted.map((token, place) => (
              <span key={place} class={place < accepted ? "accepted" : "own"}>
                {token.text}
              </span>
            ))}
          </span>
        );
      })}
    </p>
  );
}

function TracePage({ trace }: { trace: Trace }) {
  const [chosen, setChosen] = useState<number | null>(0);
  return (
    <div class="trace">
      <header>
        <h1>dyspec-edge trace</h1>
        <p class="muted">{shown(trace.model)}</p>
      </header>
      <main>
        <section class="told" aria-label="Prompt and reply">
          <h2>Prompt</h2>
          <p class="prompt">{trace.prompt}</p>
          <h2>Reply</h2>
          <ReplyBySteps steps={trace.steps} chosen={chosen} onChoose={setChosen} />
          <p class="keys">
            <span class="key accepted">drafted and accepted</span>
            <span class="key own">the target’s own</span>
          </p>
          <Table name="Settings" values={trace.settings} />
          <Table name="Timings" values={trace.timings} />
        </section>
        <section class="panel" aria-label="Token trees">
          <h2>Step by step</h2>
          <StepPanel steps={trace.steps} chosen={chosen} onChoose={setChosen} />
        </section>
      </main>
    </div>
  );
}

const embedded = document.getElementById("trace")?.textContent ?? "";
render(<TracePage trace={JSON.parse(embedded) as Trace} />, document.getElementById("page")!);
