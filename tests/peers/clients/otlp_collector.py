"""A collector of OpenTelemetry logs, by the official schema: each request must be an ExportLogsServiceRequest.

usage: otlp_collector.py FOLDER      prints its port, then a line of JSON for each request that it has judged
FOLDER/answers has a line for each answer in turn; after the last one all is taken:
  busy SECONDS     503 with Retry-After
  part N           takes the records but for N
"""
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

answers = Path(sys.argv[1], "answers").read_text().split("\n")


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = answers.pop(0).split() if answers else []
        # Unknown fields are an error: everything that is sent is in the schema.
        request = json_format.Parse(body, ExportLogsServiceRequest())
        records = []
        for of_resource in request.resource_logs:
            resource = {it.key: value(it.value) for it in of_resource.resource.attributes}
            for of_scope in of_resource.scope_logs:
                for record in of_scope.log_records:
                    records.append({
                        "resource": resource, "scope": of_scope.scope.name, "time": record.time_unix_nano,
                        "severity": record.severity_number, "body": record.body.string_value,
                        "attributes": {it.key: value(it.value) for it in record.attributes}})
        seen = {"path": self.path, "type": self.headers["Content-Type"], "token": self.headers["Authorization"],
                "answer": answer, "records": records}
        print(json.dumps(seen), flush=True)
        response = ExportLogsServiceResponse()
        if answer[:1] == ["part"]:
            response.partial_success.rejected_log_records = int(answer[1])
            response.partial_success.error_message = "too old"
        self.send_response(503 if answer[:1] == ["busy"] else 200)
        if answer[:1] == ["busy"]:
            self.send_header("Retry-After", answer[1])
        content = json_format.MessageToJson(response).encode()
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Collector)
print(server.server_port, flush=True)
server.serve_forever()
