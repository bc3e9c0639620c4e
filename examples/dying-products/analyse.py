"""Which products are dying?

Reads /inputs/sales.csv and /inputs/stock.xlsx, prints the answer and writes /outputs/dying.csv.

A product is dying when its sales, against the same months a year before, fell steadily through the last six months and
ended below a quarter. Comparing with a year before keeps seasonal products out; asking for a steady fall keeps
out the ones that could not be had for a while.

Uses pandas when it is installed and the standard library when it is not: the answer is the same.
"""

import csv
import sys
import zipfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

try:
    import openpyxl  # noqa: F401  (what pandas reads workbooks with)
    import pandas
except ImportError:
    pandas = None

INPUTS = Path(sys.argv[1] if len(sys.argv) > 1 else "/inputs")
OUTPUTS = Path(sys.argv[2] if len(sys.argv) > 2 else "/outputs")
MONTHS = 6  # how long a fall must last
ENDS_BELOW = 25  # per cent of the same month a year before
ENOUGH = 60  # units in two months of the year before: below that, chance decides


def tidy(name):
    return " ".join(name.split()).casefold()


def month_of(date):
    """2025-12-31 and 31/12/2025 are both 2025-12."""
    return date[:7] if date[4:5] == "-" else date[6:10] + "-" + date[3:5]


# --- reading, with the standard library ---

def read_sales_plain(path):
    units, lines, without = defaultdict(int), 0, 0
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            lines += 1
            if row["units"]:
                units[tidy(row["product"]), month_of(row["date"])] += int(row["units"])
            else:
                without += 1
    return dict(units), lines, without


def sheet_rows(path, sheet):
    """The rows of one sheet of a workbook as lists of text, None where a cell is empty."""
    ns = {"m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}
    rel = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
    with zipfile.ZipFile(path) as book:
        def parse(name):
            return ElementTree.fromstring(book.read(name))

        shared = []
        if "xl/sharedStrings.xml" in book.namelist():
            for item in parse("xl/sharedStrings.xml").findall("m:si", ns):
                shared.append("".join(text.text or "" for text in item.iter("{%s}t" % ns["m"])))
        wanted = next(s.get(rel) for s in parse("xl/workbook.xml").iter("{%s}sheet" % ns["m"]) if s.get("name") == sheet)
        target = next(r.get("Target") for r in parse("xl/_rels/workbook.xml.rels") if r.get("Id") == wanted)
        name = target.lstrip("/") if target.startswith("/") else "xl/" + target
        for row in parse(name).iter("{%s}row" % ns["m"]):
            cells = []
            for cell in row.findall("m:c", ns):
                letters = "".join(c for c in cell.get("r") if c.isalpha())
                column = 0
                for letter in letters:
                    column = column * 26 + ord(letter) - ord("A") + 1
                cells += [None] * (column - 1 - len(cells))
                value = cell.find("m:v", ns)
                if cell.get("t") == "inlineStr":
                    cells.append("".join(text.text or "" for text in cell.iter("{%s}t" % ns["m"])))
                elif value is None or value.text is None:
                    cells.append(None)
                else:
                    cells.append(shared[int(value.text)] if cell.get("t") == "s" else value.text)
            yield cells


def table(path, sheet):
    rows = sheet_rows(path, sheet)
    header = next(rows)
    for row in rows:
        yield dict(zip(header, row + [None] * (len(header) - len(row))))


def read_stock_plain(path):
    names, cost, on_hand = {}, {}, defaultdict(int)
    for row in table(path, "Products"):
        names[tidy(row["product"])] = row["product"]
        cost[tidy(row["product"])] = round(float(row["unit_cost"]) * 100)
    for row in table(path, "Stock"):
        if row["on_hand"]:
            on_hand[tidy(row["product"])] += int(float(row["on_hand"]))
    return names, cost, dict(on_hand)


# --- reading, with pandas ---

def read_sales_pandas(path):
    frame = pandas.read_csv(path, dtype=str, keep_default_na=False)
    lines = len(frame)
    frame = frame[frame["units"] != ""]
    # There are far fewer spellings and dates than lines.
    product = frame["product"].map({name: tidy(name) for name in frame["product"].unique()})
    month = frame["date"].map({date: month_of(date) for date in frame["date"].unique()})
    units = frame["units"].astype(int).groupby([product, month]).sum()
    return {key: int(value) for key, value in units.items()}, lines, lines - len(frame)


def read_stock_pandas(path):
    sheets = pandas.read_excel(path, sheet_name=["Products", "Stock"])
    products, stock = sheets["Products"], sheets["Stock"].dropna(subset=["on_hand"])
    names = {tidy(name): name for name in products["product"]}
    cost = {tidy(name): round(float(c) * 100) for name, c in zip(products["product"], products["unit_cost"])}
    on_hand = stock["on_hand"].astype(int).groupby(stock["product"].map(tidy)).sum()
    return names, cost, {key: int(value) for key, value in on_hand.items()}


# --- deciding ---

def dying(units, product, months):
    """Per cent of the year before, month by month, if the product is dying; else None."""
    before = [units.get((product, "%d%s" % (int(m[:4]) - 1, m[4:])), 0) for m in months]
    now = [units.get((product, m), 0) for m in months]
    # Two months at a time, since single ones jump about.
    pairs = [(sum(now[i:i + 2]), sum(before[i:i + 2])) for i in range(0, MONTHS, 2)]
    if min(before) <= 0 or min(b for _, b in pairs) < ENOUGH:
        return None
    pairs = [100 * n // b for n, b in pairs]
    falls = all(later * 10 <= earlier * 9 for earlier, later in zip(pairs, pairs[1:]))
    shares = [100 * n // b for n, b in zip(now, before)]
    return shares if falls and shares[-1] < ENDS_BELOW else None


def looks_dying(units, product, months):
    """What a look at the last months alone would say."""
    now = [units.get((product, m), 0) for m in months]
    return now[0] > 0 and now[-1] * 100 < ENDS_BELOW * now[0]


def main():
    if pandas:
        units, lines, without = read_sales_pandas(INPUTS / "sales.csv")
        names, cost, on_hand = read_stock_pandas(INPUTS / "stock.xlsx")
    else:
        units, lines, without = read_sales_plain(INPUTS / "sales.csv")
        names, cost, on_hand = read_stock_plain(INPUTS / "stock.xlsx")
    print("read with", "pandas" if pandas else "the standard library", file=sys.stderr)

    months = sorted({month for _, month in units})[-MONTHS:]
    found = {p: shares for p in names if (shares := dying(units, p, months))}
    alike = [p for p in names if p not in found and looks_dying(units, p, months)]
    order = sorted(found, key=lambda p: (-on_hand.get(p, 0) * cost[p], p))

    print(f"{len(found)} of {len(names)} products are dying ({lines:,} lines of sales, {without:,} without a count left out).")
    print(f"Units sold, per cent of the same month a year before, {months[0]} to {months[-1]}:")
    for p in order:
        trend = " ".join(f"{share:3d}" for share in found[p])
        value = on_hand.get(p, 0) * cost[p] / 100
        print(f"  {names[p]:<14}{trend}   {on_hand.get(p, 0):5,d} in stock, {value:12,.2f} at cost")
    total = sum(on_hand.get(p, 0) * cost[p] for p in order) / 100
    print(f"Money tied up in them: {total:,.2f}.")
    print(f"Not dying though they fell as far: {', '.join(sorted(names[p] for p in alike)) or 'none'}.")

    with open(OUTPUTS / "dying.csv", "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["product", *months, "in_stock", "at_cost"])
        for p in order:
            out.writerow([names[p], *found[p], on_hand.get(p, 0), f"{on_hand.get(p, 0) * cost[p] / 100:.2f}"])


if __name__ == "__main__":
    main()
