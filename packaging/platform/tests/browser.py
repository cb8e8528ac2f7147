"""A real Chromium, driven by the W3C WebDriver protocol: HTTP and JSON, to `chromedriver`."""
import base64
import json
import re
import subprocess
import threading
import time
import urllib.request

from support import installed

LIMIT_S = 60
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"]


class Browser:
    """A browser with one window."""

    def __init__(self):
        self.driver = subprocess.Popen(
            [installed("chromedriver"), "--port=0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        port = next(found[1] for line in self.driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        # Later lines must not fill the pipe.
        threading.Thread(target=self.driver.stdout.read, daemon=True).start()
        self.address, self.session = f"http://127.0.0.1:{port}", None
        options = {"binary": installed("chromium"), "args": ARGUMENTS}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def close(self):
        if self.session:
            self.ask("DELETE", f"/session/{self.session}")
        self.driver.kill()
        self.driver.wait()
        self.driver.stdout.close()

    def ask(self, method, path, body=None):
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path, content, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)["value"]

    def command(self, path, body):
        return self.ask("POST", f"/session/{self.session}/{path}", body)

    def devtools(self, command, **parameters):
        return self.command("goog/cdp/execute", {"cmd": command, "params": parameters})

    def go(self, url):
        self.command("url", {"url": url})

    def value(self, expression, *arguments):
        """The value of an expression in the page, where the arguments are `arguments[0]` and so on."""
        return self.command("execute/sync", {"script": f"return {expression};", "args": list(arguments)})

    def promised(self, promise):
        script = f"const done = arguments[0]; ({promise}).then(done, (error) => done(`error: ${{error}}`));"
        return self.command("execute/async", {"script": script, "args": []})

    def wait_for(self, expression):
        end = time.monotonic() + LIMIT_S
        while not self.value(f"Boolean({expression})"):
            if time.monotonic() > end:
                raise AssertionError(f"never {expression} in {self.text('body')[:2_000]}; {self.complaints()}")
            time.sleep(0.02)

    def text(self, selector):
        """The text of the first element that fits, as a person sees it."""
        return self.value("document.querySelector(arguments[0]).innerText", selector)

    def texts(self, selector):
        return self.value("[...document.querySelectorAll(arguments[0])].map((one) => one.innerText)", selector)

    def element(self, selector):
        found = self.command("element", {"using": "css selector", "value": selector})
        return next(iter(found.values()))

    def click(self, selector):
        self.command(f"element/{self.element(selector)}/click", {})

    def type_into(self, selector, text):
        self.command(f"element/{self.element(selector)}/value", {"text": text})

    def size(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def scheme(self, name):
        """`light` or `dark`."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.ask("GET", f"/session/{self.session}/screenshot")))

    def complaints(self):
        """What the browser complains of: refused requests, violations of the content security policy, errors."""
        return [entry["message"] for entry in self.command("se/log", {"type": "browser"})]
