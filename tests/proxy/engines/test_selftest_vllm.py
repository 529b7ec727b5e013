"""The self-test and the doctor against the real vLLM on the CPU, without the plugin, as anybody runs it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from desist.cli import app
from desist.controller import builtin_profile
from desist.proxy.engines.upstream.capabilities import Capabilities
from desist.proxy.engines.upstream.client import UpstreamClient
from desist.proxy.engines.upstream.selftest import examine
from desist.proxy.settings import UpstreamSettings
from tests.fakes.plain_vllm import NAME

pytestmark = pytest.mark.slow


def seen(url: str, **settings: Any) -> Capabilities:
    async def body() -> Capabilities:
        upstream = UpstreamSettings(url=url, **settings)
        client = UpstreamClient(upstream)
        await client.start()
        try:
            return await examine(client, upstream, builtin_profile(), NAME)
        finally:
            await client.close()

    return asyncio.run(body())


def test_R01_R02_R71_what_vllm_does_is_seen(plain: str) -> None:
    """The budget that binds is vLLM's own; a left request ends; the template strips thinking."""
    found = seen(plain)
    assert found == Capabilities(
        token_ids=True, prompt_continuation=True, final_message=False, native_budget="thinking_token_budget",
        native_offset=-1,  # the line end that the template writes after <think> counts
        running_usage=True, usage_details=found.usage_details, reasoning_field="reasoning",
        parses_reasoning=True, cancels=True, choices=True, tools=True, thinks=True, template_opens=True,
        close_tag_tokens=1, notes=found.notes,
    )  # fmt: skip


def test_R04_settings_that_contradict_vllms_parser_are_told(plain: str) -> None:
    found = seen(plain, thinking_opened_by_template=True)
    assert any("the server parses thinking itself" in each for each in found.conflicts)


def test_the_doctor_on_vllm(plain: str) -> None:
    asked = ["budget", "native budget", "token ids", "continuation", "cancel", "tools"]
    flags = [flag for name in asked for flag in ("--require", name)]
    ran = CliRunner().invoke(app, ["doctor", plain, "--json", "--quiet", *flags], standalone_mode=False)
    assert ran.return_value == 0, ran.stdout
    told = {each["what"]: each for each in json.loads(ran.stdout)["findings"]}
    assert all(told[name]["state"] == "on" for name in asked)
    assert told["final message"]["state"] == "off"


def test_an_address_that_is_not_there_is_told(plain: str) -> None:
    ran = CliRunner().invoke(app, ["doctor", f"{plain}/else", "--json", "--quiet"], standalone_mode=False)
    assert ran.return_value == 2, ran.stdout
