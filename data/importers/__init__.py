"""Published and recorded traces as desist traces: `import_file`.

Knows which formats there are; each has a module of its own. Everything imported has passed the schema's
validation, and everything that has not is in the report.
"""

from __future__ import annotations

from desist.data.importers.imports import TraceImport, import_file
from desist.data.importers.reading import FORMATS, ImportFormat
from desist.data.importers.report import Dropped, ImportReport

__all__ = ["FORMATS", "Dropped", "ImportFormat", "ImportReport", "TraceImport", "import_file"]
