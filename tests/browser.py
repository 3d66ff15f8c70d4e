"""Chromium, driven over its own debugging protocol."""

import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager

import websocket  # of websocket-client, which Jupyter brings

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
REQUIRED = bool(os.environ.get("FU_BROWSER"))  # then tests without a browser fail, and are not skipped
SECONDS = 30  # for anything to appear


class Unanswered(RuntimeError):
    """The browser had no answer: the page has gone elsewhere meanwhile, say, or a promise was collected as waste."""


class Tab:
    """One page of the browser. errors: what its console, its scripts and its network complained of since `open`."""

    def __init__(self, address, patience=SECONDS):
        self.socket = websocket.create_connection(address, timeout=patience, suppress_origin=True)
        self.numbers, self.events, self.errors = itertools.count(1), [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := json.loads(self.socket.recv())).get("id") != number:
            self.hear(message)
        if refused := message.get("error"):
            raise Unanswered(f"{method}: {refused['message']}")
        return message.get("result", {})

    def hear(self, message):
        self.events.append(message["method"])
        told = message["params"]
        if message["method"] == "Runtime.exceptionThrown":
            self.errors.append(told["exceptionDetails"]["text"])
        elif message["method"] == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"] + " " + told["entry"].get("url", ""))
        elif message["method"] == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.errors.append(str(told["args"]))
        elif message["method"] == "Network.requestWillBeSent":
            url = told["request"]["url"]
            if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
                self.errors.append(f"asks elsewhere: {url}")

    def open(self, url):
        """Load a page to its end."""
        self.events, self.errors = [], []
        self.call("Page.navigate", url=url)
        until = time.monotonic() + self.socket.gettimeout()
        while "Page.loadEventFired" not in self.events:
            assert time.monotonic() < until, f"{url} has not loaded"
            self.hear(json.loads(self.socket.recv()))
        self.value("1")  # whatever was under way has been heard

    def value(self, script):
        """What a script gives, or the promise that it gives."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def wait_for(self, script, seconds=SECONDS):
        """A script's value as soon as it is true. It is asked again and again, also where the browser has no answer."""
        until, refused = time.monotonic() + seconds, ""
        while True:
            try:
                if found := self.value(script):
                    return found
            except Unanswered as error:
                refused = f" ({error})"
            assert time.monotonic() < until, f"never true: {script}{refused}"
            time.sleep(0.1)


@contextmanager
def browser(profile, patience=SECONDS):
    """A tab of a browser of its own, whose profile is the folder `profile`; patience: seconds for an answer."""
    assert CHROMIUM, "Chromium is not installed, and FU_BROWSER is set"
    settings = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
    settings += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]
    started = subprocess.Popen([CHROMIUM, *settings, "about:blank"], stderr=subprocess.DEVNULL)
    port_file, until = profile / "DevToolsActivePort", time.monotonic() + patience
    try:
        while not port_file.exists():
            assert time.monotonic() < until, "Chromium has not started"
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port_file.read_text().split()[0]}/json") as answer:
            address = next(each["webSocketDebuggerUrl"] for each in json.load(answer) if each["type"] == "page")
        yield Tab(address, patience)
    finally:
        started.kill()
        started.wait()
