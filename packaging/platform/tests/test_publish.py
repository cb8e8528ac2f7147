"""Publishing to a folder and to S3: complete, in an order that no box can trip over, and again for nothing."""
import logging
import os
import unittest
from unittest import mock

from support import Kit, bucket_server
from ledge_platform import publish


class Folders(Kit):
    def test_what_is_named_goes_before_who_names_it(self):
        self.add(1)
        self.start()
        sent = []
        with mock.patch.object(publish.Folder, "put", lambda _self, path, _source: sent.append(path)):
            self.done("publish", self.repo, self.folder / "served")
        targets = [number for number, path in enumerate(sent) if path.startswith("targets/")]
        self.assertEqual(targets, list(range(len(targets))))
        self.assertEqual(sent[-2:], ["metadata/1.root.json", "metadata/timestamp.json"])
        self.assertLess(max(i for i, path in enumerate(sent) if path.endswith((".models.json", ".fleet.json"))),
                        min(i for i, path in enumerate(sent) if path.endswith(".snapshot.json")))
        self.assertFalse(any(".lock" in path or "staged" in path for path in sent))

    def publish_and_look(self, served):
        """Publishes; after each file, whether a client accepts what is there."""
        put, looks = publish.Folder.put, []

        def put_and_look(place, path, source):
            put(place, path, source)
            looks.append((path, self.run_verb("verify", served)[0] == 0))

        with mock.patch.object(publish.Folder, "put", put_and_look):
            self.done("publish", self.repo, served)
        return looks

    def test_at_every_moment_of_a_publication_clients_accept_what_is_there(self):
        served = self.folder / "served"
        self.add(1)
        self.done("publish", self.repo, served)
        self.add(2)
        self.start("r-1", "models/wine/2")
        self.done("key", "rotate", self.repo, "fleet", "--keys", self.online, "--keys", self.offline)
        looks = self.publish_and_look(served)
        self.assertGreater(len(looks), 8)
        self.assertEqual([path for path, accepted in looks if not accepted], [])

    def test_a_new_timestamp_key_is_refused_only_until_the_timestamp_is_there(self):
        served = self.folder / "served"
        self.done("publish", self.repo, served)
        self.done("key", "rotate", self.repo, "timestamp", "--keys", self.online, "--keys", self.offline)
        refused = [path for path, accepted in self.publish_and_look(served) if not accepted]
        self.assertEqual(refused, ["metadata/2.root.json"])

    def test_a_root_that_refuses_the_public_timestamp_does_not_go_out(self):
        served = self.folder / "served"
        self.done("publish", self.repo, served)
        self.done("key", "generate", "later", "--plain", "--keys", self.online)
        public = self.online / "later.pub.pem"
        self.done("key", "rotate", self.repo, "timestamp", "--public", public, "--keys", self.offline)
        self.failed("the public version of timestamp is not signed by its present keys", "publish", self.repo, served)
        self.done("verify", served)
        self.done("refresh", self.repo, "--keys", self.online)
        self.done("publish", self.repo, served)
        self.done("verify", served)

    def test_a_second_publication_sends_what_changed(self):
        served = self.folder / "served"
        self.add(1)
        self.done("publish", self.repo, served)
        self.assertIn("2 files sent", self.done("publish", self.repo, served))
        self.start()
        self.assertIn(
            "5 files sent", self.done("publish", self.repo, served)
        )  # manifest, fleet, snapshot, root.json, timestamp
        self.done("verify", served)

    def test_what_was_cut_off_is_completed(self):
        served = self.folder / "served"
        self.add(1)
        self.done("publish", self.repo, served)
        damaged = next((served / "targets" / "models").rglob("*.model.onnx"))
        damaged.write_bytes(b"wei")
        self.done("publish", self.repo, served)
        self.done("verify", served)

    def test_other_places_are_refused(self):
        self.failed("a folder or s3://", "publish", self.repo, "ftp://example.com/x")


class S3(Kit):
    def setUp(self):
        super().setUp()
        boto3, ThreadedMotoServer = bucket_server()
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        words = mock.patch.dict(os.environ, keys)
        words.start()
        self.addCleanup(words.stop)
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server.start()
        self.addCleanup(server.stop)
        self.endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        self.s3 = boto3.client("s3", endpoint_url=self.endpoint)
        self.s3.create_bucket(Bucket="fleet")

    def test_a_bucket_serves_what_the_folder_has(self):
        self.add(1)
        self.start()
        self.done("publish", self.repo, "s3://fleet/ledge", "--endpoint", self.endpoint)
        objects = {item["Key"]: item for item in self.s3.list_objects_v2(Bucket="fleet")["Contents"]}
        self.assertEqual({f"ledge/{path}" for path in publish.listing(self.repository)}, set(objects))
        caching = {path: self.s3.head_object(Bucket="fleet", Key=f"ledge/{path}")["CacheControl"]
                   for path in ("metadata/timestamp.json", "metadata/1.root.json")}
        self.assertEqual(caching["metadata/timestamp.json"], "no-cache")
        self.assertIn("immutable", caching["metadata/1.root.json"])
        self.assertIn("2 files sent", self.done("publish", self.repo, "s3://fleet/ledge", "--endpoint", self.endpoint))
        self.s3.put_bucket_policy(
            Bucket="fleet",
            Policy='{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", '
            '"Action": "s3:GetObject", "Resource": "arn:aws:s3:::fleet/*"}]}',
        )
        self.done("verify", f"{self.endpoint}/fleet/ledge", "--root", self.repo / "root.json")

    def test_a_bucket_that_is_not_there_is_told(self):
        self.failed(
            "s3://nowhere/x cannot be read", "publish", self.repo, "s3://nowhere/x", "--endpoint", self.endpoint
        )


if __name__ == "__main__":
    unittest.main()
