"""Answers ib-kubernetes like UFM: ufm.py PORT. Prints each change of a partition that it asks for."""

import base64
import http.server
import json
import sys

USER = "Basic " + base64.b64encode(b"admin:123456").decode()
# GUIDs by P_Key.
partitions = {}


class Ufm(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        listed = {hex(key): {"guids": [{"guid": guid} for guid in guids]} for key, guids in partitions.items()}
        answers = {
            "/ufmRest/app/ufm_version": {"ufm_release_version": "6.15.0"},
            "/ufmRest/resources/pkeys/?guids_data=true": listed,
        }
        self.answer(answers.get(self.path))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        guids = partitions.setdefault(int(asked["pkey"], 0), set())
        changes = {
            "/ufmRest/resources/pkeys": guids.update,
            "/ufmRest/actions/remove_guids_from_pkey": guids.difference_update,
        }
        change = changes.get(self.path)
        if change and self.headers["Authorization"] == USER:
            change(asked["guids"])
            print(self.path, asked["pkey"], *asked["guids"], flush=True)
        self.answer({} if change else None)

    def answer(self, found):
        status = 401 if self.headers["Authorization"] != USER else 404 if found is None else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *words):
        pass


http.server.HTTPServer(("", int(sys.argv[1])), Ufm).serve_forever()
