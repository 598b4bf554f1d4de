"""A web application around a shop, and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from celery_guard import NonRetryableError, RetryableError
from celery_guard.contrib.fastapi import Problem, accept, accepting, guard_router, problem_response
from tests.flow.seams import Shop

T = TypeVar("T")


class Order(BaseModel):
    number: int = Field(ge=0, le=10**9)
    copies: int = 1


def same_tenant(request: Request, run: Any) -> bool:
    """Let a client see the runs of its tenant."""
    return run.meta.get("tenant") == request.headers.get("x-tenant", "acme")


class Site:
    """A FastAPI application with orders, charges, which need a key, and a status API.

    Args:
        shop: the Celery app behind it.
        options: what ``guard_router`` takes besides.
    """

    def __init__(self, shop: Shop, **options: Any) -> None:
        self.shop = shop
        self.ship, self.busy, self.refuse = _tasks(shop.app)
        self.api = FastAPI()
        self.root_path = ""
        self.api.include_router(guard_router(shop.app, **{"authorize": same_tenant, **options}))
        self.api.add_exception_handler(Problem, problem_response)
        self._add_orders()

    def _add_orders(self) -> None:
        @self.api.post("/orders", **accepting())
        async def place(order: Order, request: Request) -> Any:
            tenant = request.headers.get("x-tenant", "acme")
            arguments = (order.number, order.copies)
            return await accept(self.ship, arguments, request=request, caller=tenant, meta={"tenant": tenant})

        @self.api.post("/charges", **accepting(key_required=True))
        async def charge(order: Order, request: Request) -> Any:
            return await accept(self.ship, (order.number,), request=request, caller="acme", key_required=True)

    def request(self, method: str, path: str, **words: Any) -> httpx.Response:
        """Send one request."""
        return self.serve(lambda client: client.request(method, path, **words))

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.request("GET", path, headers=_named(headers))

    def post(self, path: str, number: int | None = None, **headers: str) -> httpx.Response:
        return self.request("POST", path, json=None if number is None else {"number": number}, headers=_named(headers))

    def serve(self, work: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
        """Do what a client does, on an event loop of its own."""

        async def main() -> T:
            transport = httpx.ASGITransport(self.api, root_path=self.root_path)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return await work(client)

        return asyncio.run(main())


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def _tasks(app: Any) -> tuple[Any, Any, Any]:
    @app.task(name="shop.ship")
    def ship(number: int, copies: int = 1) -> Any:
        return number

    @app.task(name="shop.busy", max_attempts=2)
    def busy(number: int) -> Any:
        raise RetryableError(f"busy with {number}", retry_after=600)

    @app.task(name="shop.refuse")
    def refuse(number: int) -> Any:
        raise NonRetryableError(f"{number} is no order")

    return ship, busy, refuse
