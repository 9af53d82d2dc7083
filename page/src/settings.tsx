// The settings dialog.  The key lives in this tab's session storage only; the rest in memory.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Settings } from "./api";

const KEY = "dyspec-edge-api-key";

export function storedKey(): string {
  return sessionStorage.getItem(KEY) ?? "";
}

function storeKey(key: string): void {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

interface NumberFieldProps {
  label: string;
  hint: string;
  value: number | undefined;
  min: number;
  max: number;
  step: number;
  onChange: (value: number | undefined) => void;
}

function NumberField({ label, hint, value, min, max, step, onChange }: NumberFieldProps) {
  return (
    <label class="field">
      <span>{label}</span>
      <input
        type="number"
        inputMode="decimal"
        placeholder={hint}
        min={min}
        max={max}
        step={step}
        value={value ?? ""}
        onInput={(event) => {
          const number = event.currentTarget.valueAsNumber;
          onChange(Number.isNaN(number) ? undefined : number);
        }}
      />
    </label>
  );
}

interface Props {
  settings: Settings;
  apiKey: string;
  onSave: (settings: Settings, key: string) => void;
  onClose: () => void;
}

export function SettingsDialog({ settings, apiKey, onSave, onClose }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [edited, setEdited] = useState(settings);
  const [key, setKey] = useState(apiKey);
  useEffect(() => dialog.current?.showModal(), []);
  const change = (part: Partial<Settings>) => setEdited({ ...edited, ...part });
  return (
    <dialog ref={dialog} aria-labelledby="settings-title" onClose={onClose}>
      <form
        method="dialog"
        onSubmit={() => {
          storeKey(key);
          onSave(edited, key);
        }}
      >
        <h2 id="settings-title">Settings</h2>
        <NumberField
          label="Temperature"
          hint="the server’s"
          {...{ value: edited.temperature, min: 0, max: 5, step: 0.05 }}
          onChange={(temperature) => change({ temperature })}
        />
        <NumberField
          label="Most tokens of a reply"
          hint="the server’s"
          {...{ value: edited.maxTokens, min: 1, max: 1e6, step: 1 }}
          onChange={(maxTokens) => change({ maxTokens })}
        />
        <NumberField
          label="Seed"
          hint="a new one each time"
          {...{ value: edited.seed, min: 0, max: 4294967295, step: 1 }}
          onChange={(seed) => change({ seed })}
        />
        <label class="field check">
          <input
            type="checkbox"
            checked={edited.speculation}
            onChange={(event) => change({ speculation: event.currentTarget.checked })}
          />
          <span>Speculation: guess ahead with token trees. It changes the speed, not what the model says.</span>
        </label>
        <label class="field">
          <span>API key</span>
          <input
            type="password"
            autocomplete="off"
            placeholder="if the server wants one"
            value={key}
            onInput={(event) => setKey(event.currentTarget.value.trim())}
          />
          <small>Kept in this tab until it is closed.</small>
        </label>
        <div class="actions">
          <button type="submit" class="primary">
            Save
          </button>
          <button type="button" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
        </div>
      </form>
    </dialog>
  );
}
