"""The settings of who may ask what: client keys and tenants.

Knows names, bounds and defaults; `desist.proxy.access.keys` and `tenants` use them.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from desist.proxy.access.keys import checked_key
from desist.proxy.access.tenants import Tenant
from desist.proxy.settings.group import Budget, Group

__all__ = ["KeySettings", "TenantSettings", "alpha_text"]


def alpha_text(value: object) -> object:
    """A tolerated risk as the text it was written in: as a float it would not be exact."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        try:
            alpha = Fraction(value)
        except (ValueError, ZeroDivisionError):
            raise ValueError("give a number above 0 and below 1, such as 0.05 or 1/20") from None
        if not 0 < alpha < 1:
            raise ValueError("give a number above 0 and below 1, such as 0.05 or 1/20")
    return value


class KeySettings(Group):
    """A client key, and whose it is."""

    key: SecretStr = Field(description="what clients send as `Authorization: Bearer KEY`")
    tenant: str | None = Field(default=None, description="name of one of `tenants`")

    @field_validator("key")
    @classmethod
    def _usable(cls, value: SecretStr) -> SecretStr:
        return SecretStr(checked_key(value.get_secret_value()))


class TenantSettings(Group):
    """Ceilings of the requests under some keys. A client may ask for less, never for more."""

    mode: Literal["off", "shadow", "active"] = Field(default="active", description="highest mode")
    alpha: str | None = Field(default=None, description="largest tolerated risk; none: any certificate's")
    budget: Budget | None = Field(default=None, description="largest budget in reasoning tokens, in any mode")
    group: str | None = Field(default=None, description="use certificates of this group, where there are any")
    audits: bool = Field(default=True, description="whether its requests may be audited")
    separate_drift: bool = Field(default=False, description="a drift detector of its own")

    _alpha = field_validator("alpha", mode="before")(alpha_text)

    def tenant(self, name: str) -> Tenant:
        """These settings as the tenant called `name`."""
        alpha = None if self.alpha is None else Fraction(self.alpha)
        return Tenant(name, self.mode, alpha, self.budget, self.group, self.audits, self.separate_drift)
