"""The official OpenAI client: a stream, a schema, and what the drafts were worth.

dyspec-edge serve --pair qwen2.5-coder &
OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none python examples/openai_client.py
"""

from __future__ import annotations

import json

import openai

client = openai.OpenAI()
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Count from one to ten in words."}],
    max_tokens=40,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
    timings = (chunk.model_extra or {}).get("timings")
    if timings:
        print(f"\n{timings['predicted_n']} tokens in {timings['steps']} passes of the big model")

schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "large": {"type": "boolean"}},
    "required": ["city", "large"],
}
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Name the capital of Switzerland as JSON."}],
    response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    max_tokens=200,
)
print(json.loads(answer.choices[0].message.content or "{}"))
