// The steps of one reply: a scrubber over them, the chosen step's tree, and its figures.

import { useMemo, useState } from "preact/hooks";
import { PriceChart, PriceTable, Timeline } from "./charts";
import { acceptedTokens, curve, KIND_NAMES, shownNodes, totalsOf, type ShownNode, type Step } from "./step";
import { Legend, TreeDrawing, TreeList } from "./tree_view";
import { counted, duration, percent, rate, visible } from "./words";

const CONTEXT_LETTERS = 60;

/** What the step added, after the end of what stood before. */
function Added({ steps, chosen }: { steps: Step[]; chosen: number }) {
  const before = steps
    .slice(Math.max(0, chosen - 20), chosen)
    .flatMap((step) => step.emitted.map((token) => token.text))
    .join("");
  const step = steps[chosen];
  if (!step) return null;
  const accepted = acceptedTokens(step);
  return (
    <p class="added">
      <span class="before">
        {before.length > CONTEXT_LETTERS && "…"}
        {before && visible(before.slice(-CONTEXT_LETTERS))}
      </span>
      <span class="emitted">
        {step.emitted.map((token, at) => (
          <mark key={at} class={at < accepted ? "accepted" : "own"}>
            {visible(token.text)}
          </mark>
        ))}
      </span>
    </p>
  );
}

function NodeFigures({ node }: { node: ShownNode | undefined }) {
  if (!node) return <p class="node-figures muted">Point at a node, or move through the tree with the arrow keys.</p>;
  return (
    <p class="node-figures">
      <code>{visible(node.text)}</code> <span class="muted">id {node.id}</span>
      {node.probability !== null && (
        <>
          {" · "}
          <b>{(100 * node.probability).toFixed(1)} %</b> among its siblings
        </>
      )}
      {node.pathProbability !== null && node.depth > 1 && (
        <>
          {" · "}
          <b>{(100 * node.pathProbability).toFixed(1)} %</b> with its path
        </>
      )}
      {" · "}
      depth {node.depth} · <b>{KIND_NAMES[node.kind]}</b>: {node.note}
    </p>
  );
}

function TimeBar({ step }: { step: Step }) {
  const other = Math.max(0, step.seconds - step.draft_seconds - step.target_seconds);
  const parts = [
    { name: "draft", seconds: step.draft_seconds },
    { name: "target", seconds: step.target_seconds },
    { name: "other", seconds: other },
  ];
  return (
    <div class="time">
      <svg width="100%" height="8" aria-hidden="true">
        {parts.map(({ name, seconds }, at) => {
          const start = parts.slice(0, at).reduce((sum, part) => sum + part.seconds, 0);
          const share = (part: number) => `${(100 * part) / (step.seconds || 1)}%`;
          return <rect key={name} class={name} x={share(start)} width={share(seconds)} height="8" />;
        })}
      </svg>
      <p>
        {parts.map(({ name, seconds }) => (
          <span key={name} class={`key ${name}`}>
            {name} {duration(seconds)}
          </span>
        ))}
      </p>
    </div>
  );
}

function Figures({ step }: { step: Step }) {
  const checked = step.nodes.filter((node, at) => at > 0 && node.checked).length;
  const figures: [string, string][] = [
    ["drafted", counted(Math.max(0, step.nodes.length - 1), "node")],
    ["checked", counted(checked, "node")],
    ["accepted", counted(acceptedTokens(step), "node")],
    ["gave", counted(step.emitted.length, "token")],
    ["target’s pass", counted(step.rows, "row")],
    ["draft", counted(step.draft_passes, "pass", "passes")],
    ["took", duration(step.seconds)],
    ["speed", rate(step.tokens_per_second)],
  ];
  return (
    <dl class="figures">
      {figures.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function PricesOf({ step }: { step: Step }) {
  const plain = curve(step.prices?.target).find((point) => point.rows === 1);
  if (!step.prices || !plain) return null;
  const worth = step.seconds / plain.seconds;
  return (
    <section class="price-section" aria-label="Prices">
      <h3>Prices: time of a pass by its rows</h3>
      <p>
        A plain pass costs {duration(plain.seconds)}. This step took as long as <b>{worth.toFixed(1)}</b> of
        them and gave <b>{counted(step.emitted.length, "token")}</b>.
      </p>
      <PriceChart prices={step.prices} rows={step.rows} seconds={step.target_seconds} />
      <p class="keys">
        <span class="key target">target</span>
        <span class="key draft">draft</span>
        <span class="muted">
          ring: this step’s pass, {counted(step.rows, "row")} in {duration(step.target_seconds)}
        </span>
      </p>
      <details>
        <summary>Prices as a table</summary>
        <PriceTable prices={step.prices} />
      </details>
    </section>
  );
}

interface ScrubberProps {
  steps: Step[];
  chosen: number;
  live: boolean;
  following: boolean;
  onChoose: (at: number) => void;
  onFollow: () => void;
}

function Scrubber({ steps, chosen, live, following, onChoose, onFollow }: ScrubberProps) {
  const step = steps[chosen];
  if (!step) return null;
  const last = steps.length - 1;
  const text = `step ${chosen + 1} of ${steps.length}: ${counted(step.emitted.length, "token")}, ${counted(
    step.rows,
    "row",
  )}, ${rate(step.tokens_per_second)}`;
  return (
    <div class="scrubber">
      <Timeline steps={steps} chosen={chosen} onChoose={onChoose} />
      <div class="scrub-row">
        <button type="button" aria-label="Previous step" disabled={chosen === 0} onClick={() => onChoose(chosen - 1)}>
          ‹
        </button>
        <input
          type="range"
          aria-label="Step"
          aria-valuetext={text}
          min={0}
          max={last}
          value={chosen}
          onInput={(event) => onChoose(event.currentTarget.valueAsNumber)}
        />
        <button type="button" aria-label="Next step" disabled={chosen >= last} onClick={() => onChoose(chosen + 1)}>
          ›
        </button>
        <output>
          step {chosen + 1} of {steps.length}
        </output>
        {live && !following && (
          <button type="button" class="follow" onClick={onFollow}>
            Follow
          </button>
        )}
      </div>
    </div>
  );
}

function Summary({ steps }: { steps: Step[] }) {
  const totals = useMemo(() => totalsOf(steps), [steps]);
  return (
    <p class="summary">
      <b>{totals.tokensPerPass.toFixed(2)}</b> tokens per pass · {counted(totals.tokens, "token")} in{" "}
      {counted(steps.length, "step")}
      {totals.checked > 0 && (
        <>
          {" "}
          · {percent(totals.accepted / totals.checked)} of {totals.checked} checked nodes accepted
        </>
      )}
      {totals.seconds > 0 && <> · {rate(totals.tokens / totals.seconds)}</>}
    </p>
  );
}

function Tree({ step }: { step: Step }) {
  const [asList, setAsList] = useState(false);
  const nodes = useMemo(() => shownNodes(step), [step]);
  const [pointed, setPointed] = useState<ShownNode>();
  return (
    <>
      <div class="tree-head">
        <h3>Token tree</h3>
        <div class="switch" role="group" aria-label="Show the tree as">
          <button type="button" aria-pressed={!asList} onClick={() => setAsList(false)}>
            drawing
          </button>
          <button type="button" aria-pressed={asList} onClick={() => setAsList(true)}>
            list
          </button>
        </div>
      </div>
      {asList ? <TreeList nodes={nodes} /> : <TreeDrawing nodes={nodes} onChoose={setPointed} />}
      {!asList && <NodeFigures node={pointed && nodes.includes(pointed) ? pointed : undefined} />}
      <Legend />
    </>
  );
}

interface PanelProps {
  steps: Step[];
  /** More steps are coming: the newest is shown until somebody goes back. */
  live?: boolean;
  chosen: number | null;
  onChoose: (at: number | null) => void;
}

export function StepPanel({ steps, live = false, chosen, onChoose }: PanelProps) {
  const at = chosen === null ? steps.length - 1 : Math.min(chosen, steps.length - 1);
  const step = steps[at];
  if (!step) return <p class="empty">{live ? "Waiting for the first step …" : "No steps came with this reply."}</p>;
  return (
    <div class="step-panel">
      <Summary steps={steps} />
      <Scrubber
        steps={steps}
        chosen={at}
        live={live}
        following={chosen === null}
        onChoose={onChoose}
        onFollow={() => onChoose(null)}
      />
      <Added steps={steps} chosen={at} />
      <Tree step={step} />
      <Figures step={step} />
      <TimeBar step={step} />
      <PricesOf step={step} />
    </div>
  );
}
