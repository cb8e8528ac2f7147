#!/usr/bin/env python3
"""Measures the page of the console: its bytes, the time to its first paint, and the CPU of a daemon with ten pages open.

usage: console.py URL PID [SECONDS]

URL is the page of a running Ledge, PID its process, whose CPU time is counted for SECONDS (60). Drives headless Chromium by chromedriver; both must be
on the PATH. Each of the first paints is of a new browser with an empty cache, and is that of the browser's own `first-contentful-paint`.
"""
import gzip
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "src" / "console" / "page"
LOOKS, PAGES = 7, 10
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


class Browser:
    """Headless Chromium with one window, by the protocol of W3C WebDriver."""

    def __init__(self):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = next(line for line in self.driver.stdout if "successfully on port " in line)
        self.base = f"http://127.0.0.1:{line.rsplit(' ', 1)[1].strip().rstrip('.')}"
        options = {"goog:chromeOptions": {"args": ARGUMENTS}}
        self.base += f"/session/{self.ask('/session', {'capabilities': {'alwaysMatch': options}})['sessionId']}"

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"})) as answer:
            return json.load(answer)["value"]

    def go(self, url):
        self.ask("/url", {"url": url})

    def value(self, expression):
        return self.ask("/execute/sync", {"script": f"return {expression};", "args": []})

    def new_tab(self):
        self.ask("/window", {"handle": self.ask("/window/new", {"type": "tab"})["handle"]})

    def close(self):
        urllib.request.urlopen(urllib.request.Request(self.base, method="DELETE")).close()
        self.driver.terminate()
        self.driver.wait()


def first_paint_ms(url):
    browser = Browser()
    browser.go(url)
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
    time.sleep(1)  # asking meanwhile would delay it
    while (found := browser.value(paint)) is None:
        time.sleep(0.1)
    browser.close()
    return found


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def share_of_a_core(pid, seconds):
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began)


def main(url, pid, seconds="60"):
    files = sorted(PAGE.iterdir())
    sent = sum(len(gzip.compress(file.read_bytes())) for file in files)
    print(f"{len(files)} files, {sent:,} bytes as sent, {sum(file.stat().st_size for file in files):,} bytes without gzip")
    paints = sorted(first_paint_ms(url) for _ in range(LOOKS))
    print(f"first paint: median {statistics.median(paints):.0f} ms, {paints[0]:.0f} to {paints[-1]:.0f}")

    alone = share_of_a_core(pid, float(seconds))
    browser = Browser()
    for page in range(PAGES):
        if page:
            browser.new_tab()
        browser.go(url)
    time.sleep(15)  # what each page loads first
    with_pages = share_of_a_core(pid, float(seconds))
    browser.close()
    print(f"CPU of the daemon: {alone:.2%} of a core alone, {with_pages:.2%} with {PAGES} pages open")


if __name__ == "__main__":
    main(*sys.argv[1:])
