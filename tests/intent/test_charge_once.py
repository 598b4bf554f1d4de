"""The comparison of the example shop, as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.infra.processes import ROOT


@pytest.mark.parametrize("servers", ["files", "redis and postgres"])
def test_a_guarded_order_is_charged_once_and_a_plain_one_more_often(servers, request, tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    if servers != "files":
        env["SHOP_BROKER_URL"] = request.getfixturevalue("redis_url")
        env["SHOP_DATABASE_URL"] = request.getfixturevalue("postgres_url")

    done = subprocess.run(
        [sys.executable, "-m", "example_project.charge_once"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    charged = [int(count) for count in re.findall(r"charged order 42 (\d+) time", done.stdout)]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(charged) == 2
    assert charged[0] > charged[1] == 1
