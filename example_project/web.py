"""The shop's web application: ``uvicorn example_project.web:web``. An order becomes a run with a status page."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, Field

from celery_guard.contrib.fastapi import ANYBODY, Problem, accept, accepting, guard_router, problem_response
from example_project.app import app
from example_project.tasks import export_order

__all__ = ["web"]

web = FastAPI(title="The shop")
# The shop of the demo has no customers who could be told apart; see docs/how-to/fastapi.md for one that has.
web.include_router(guard_router(app, authorize=ANYBODY))
web.add_exception_handler(Problem, problem_response)


class Order(BaseModel):
    """What a customer wants exported."""

    number: int = Field(ge=1, le=10**9)


@web.post("/orders", summary="Export an order", **accepting())
async def place_order(order: Order, request: Request) -> Response:
    """Accept an order. The same `Idempotency-Key` exports it once."""
    return await accept(export_order, (order.number,), request=request, caller=ANYBODY)


@web.get("/", response_class=HTMLResponse, include_in_schema=False)
async def front_page() -> str:
    """Show a form that places an order and goes on to its status page."""
    return _FRONT_PAGE


_FRONT_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The shop</title>
<style>
  :root { color-scheme: light dark; }
  body { max-width: 32rem; margin: 3rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; }
  input, button { font: inherit; padding: .3rem .6rem; }
</style>
<h1>The shop</h1>
<p>Order 1001 is exported, 1004 meets a partner who is always busy, and 9999 does not exist.</p>
<form>
  <label>Order <input name="number" type="number" min="1" value="1001" required></label>
  <button>Export</button>
  <output></output>
</form>
<script>
  const form = document.querySelector("form");
  form.onsubmit = async event => {
    event.preventDefault();
    const answer = await fetch("orders", {
      method: "POST",
      headers: {"Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID()},
      body: JSON.stringify({number: form.number.valueAsNumber}),
    });
    const told = await answer.json();
    if (answer.status === 202) location = told.status_url + "/timeline";
    else form.querySelector("output").textContent = told.title ?? "That is no order.";
  };
</script>
</html>
"""
