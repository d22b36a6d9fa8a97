"""The table of all rules, as the page about EDFs must hold it."""

import string

from gipfel_cluster.edf.dialects import DIALECTS
from gipfel_cluster.edf.lint import RULES


class _Capitals(string.Formatter):
    """Puts the name of a word, in capitals, where the word would be."""

    def get_value(self, key, args, kwargs):
        return str(key).upper()

    def convert_field(self, value, conversion):
        return f"'{value}'" if conversion == "r" else value


def rules_table() -> str:
    rows = ["| code | dialects | what is wrong | what it causes | what to do |", "|---|---|---|---|---|"]
    for rule in RULES:
        code = f"`{rule.code}`" + (" (error)" if rule.severity == "error" else "")
        where = "all" if rule.dialects == DIALECTS else ", ".join(rule.dialects)
        texts = [_Capitals().format(text) for text in (rule.reason, rule.consequence, rule.fix)]
        rows.append("| " + " | ".join([code, where, *texts]) + " |")
    return "\n".join(rows) + "\n"
