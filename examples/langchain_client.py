"""LangChain: a stream, and an answer of a given form.

dyspec-edge serve --pair qwen2.5-coder &
OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none python examples/langchain_client.py
"""

from __future__ import annotations

import openai
from langchain_openai import ChatOpenAI

model = openai.OpenAI().models.list().data[0].id
chat = ChatOpenAI(model=model, max_tokens=200)

for chunk in chat.stream("Count from one to ten in words.", max_tokens=40):
    print(chunk.content, end="", flush=True)
print()

schema = {
    "title": "city",
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "large": {"type": "boolean"}},
    "required": ["city", "large"],
}
answer = chat.with_structured_output(schema, method="json_schema")
print(answer.invoke("Name the capital of Switzerland as JSON."))
