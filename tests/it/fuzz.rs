//! Bounded, repeatable fuzzing on the stable compiler. `fuzz/` has the same targets for cargo-fuzz, which runs for longer.

use ledge::audit::fuzz::{fuzz_audit_files, fuzz_audit_proof};
use ledge::features::fuzz::{fuzz_feature_keys, fuzz_feature_records, fuzz_feature_values, fuzz_feature_views};
use ledge::features::window::{fuzz_window, window_seeds};
use ledge::features::{journal, snapshot};
use ledge::identity::api_key::fuzz_key;
use ledge::identity::keys::fuzz_keys;
use ledge::mqtt::client::fuzz::mqtt_packets;
use ledge::mqtt::fuzz::{fuzz_message, fuzz_topics};
use ledge::pipeline::image::fuzz_image;
use ledge::protocol::fuzz::{fuzz_binary, fuzz_json};
use ledge::repository::model_config;
use ledge::updates::trust::fuzz::fuzz_metadata;

/// Requests of the kinds that the protocol knows.
const JSON: &[&[u8]] = &[
    br#"{"id":"1","inputs":[{"name":"IN","shape":[2,2],"datatype":"FP32","data":[[1,2.5],[-3e-1,4]]}],"outputs":[{"name":"OUT"}]}"#,
    br#"{"inputs":[{"data":[true,false],"name":"a","datatype":"BOOL","shape":[2]},{"name":"b","shape":[0,3],"datatype":"INT8","data":[]}]}"#,
    br#"{"parameters":{"binary_data_output":true,"timeout":10,"priority":1},"inputs":[{"name":"\u00e9","shape":[1,1,3],"datatype":"BYTES","data":["a","\n","\ud83d\ude00"]}]}"#,
    br#"{"inputs":[{"name":"u","shape":[2],"datatype":"UINT64","data":[18446744073709551615,0]},{"name":"h","shape":[2],"datatype":"FP16","data":[0.1,65504]},{"name":"w","shape":[1],"datatype":"BF16","data":[1e38]},{"name":"d","shape":[1],"datatype":"FP64","data":[1e308]}]}"#,
    br#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}}],"outputs":[{"name":"y","parameters":{"binary_data":true,"classification":2}}]}"#,
    br#"{"inputs":[{"name":"s","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":7}},{"name":"j","shape":[1],"datatype":"INT16","data":[-7]}]}"#,
];

/// A bundle, a record, a path and a checkpoint, each behind its kind.
const AUDIT_FILES: &[&[u8]] = &[
    b"\0\0\x03abc\0\0\0\x01x",
    br#"{"v":1,"seq":7,"ts":"2026-01-01T00:00:00.250Z","actor":{"kind":"ip","tag":"3:00"},"event":{"action":"stopped"}}"#,
    b"\x02tile/entries/x001/x234/067.p/112",
    b"\x02tile/2/007",
    b"\x03ledge.audit/box-1/1\n7\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n\n\xe2\x80\x94 ledge.audit/box-1 erjU9AAA\n",
];

/// Pieces that turn one kind of request into another.
const PIECES: &[&[u8]] = &[
    b"null",
    b"true",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u0000",
    b"-",
    b"1e39",
    b"0",
    b"-0",
    b"256",
    b"1.0",
    b"18446744073709551616",
    b"[[1,2],[3,4]]",
    b"\"data\":[1],",
    b"\"shape\":[2,2],",
    b"\"datatype\":\"FP32\",",
    b"\"inputs\":[],",
    b"\"name\":\"a\",",
    b"\"parameters\":{\"binary_data_size\":4},",
    b"FP64",
    b"BYTES",
    b"INT8",
    b"\xff",
    b"\0\0\xc0\x7f",
    b" ",
    b"\n",
    b"/",
    b"+",
    b"#",
    b"$",
    b"{1}",
    b"'",
    b"[0]",
];

/// Model configs of every kind of key.
const MODEL_TOML: &[&[u8]] = &[
    b"runtime = \"auto\"\nmax_batch_size = 8\nversion_policy = { latest = 2 }\n[instance_group]\ncount = 2\nthreads = 1\n",
    b"version_policy = \"all\"\n[queue]\nmax_size = 3\ndefault_timeout_ms = 4\n[[golden]]\nfile = \"a.json\"\ntolerance = 0.1\n",
    b"[[output]]\nname = \"y\"\nlabels = \"l.txt\"\n[pipeline.image_classification]\ncrop = [2, 2]\nmean = [1.0, 2.0, 3.0]\n",
    b"version_policy = { specific = [1, 3] }\n[[input]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [-1, 4]\n",
];

/// Packets of a broker, behind the version (0: MQTT 5, 1: 3.1.1), how the stream is cut, and the largest message taken.
const MQTT_PACKETS: &[&[u8]] = &[
    // CONNACK with each property that is read, PINGRESP, DISCONNECT with a reason in words.
    b"\0\x02\xff\x20\x1c\x01\0\x19\x11\0\0\x0e\x10\x21\0\x14\x24\x01\x25\x01\x27\0\x10\0\0\x2a\x01\x13\0\x3c\x22\0\x0a\
      \xd0\0\xe0\x07\x8e\x05\x1f\0\x02hi",
    // PUBLISH with each property, a payload, and an acknowledgement behind it.
    b"\0\x05\xff\x3a\x2f\0\x03a/b\0\x07\x20\x01\x01\x02\0\0\0\x09\x03\0\x01t\x08\0\x03r/s\x09\0\x02\0\xff\x0b\x81\x01\x26\0\x01k\0\x01v\
      payload\x40\x03\0\x01\x10",
    // The same kind of message where at most ten bytes are taken.
    b"\0\x01\x0a\x30\x10\0\x03a/b\0payload...\xd0\0\xb0\x04\0\x01\0\0\x90\x05\0\x01\0\0\x9e",
    // MQTT 3.1.1.
    b"\x01\x03\xff\x20\x02\x01\0\x90\x04\0\x01\x01\x80\x32\x0b\0\x03a/b\0\x07text\x40\x02\0\x07\xb0\x02\0\x01\xd0\0",
    // An old broker's refusal of MQTT 5.
    b"\0\0\xff\x20\x02\0\x01",
];

#[test]
fn a_foreign_broker_never_breaks_the_client() {
    for (seed, packets) in MQTT_PACKETS.iter().zip([3, 2, 4, 6, 1]) {
        assert_eq!(mqtt_packets(seed), packets, "{seed:?}");
    }
    for seed in 0..50_000 {
        mqtt_packets(&mutate(seed, MQTT_PACKETS));
    }
}

/// A key, and a store of two.
const KEYS: [&[u8]; 2] = [
    b"ledge_0123abcd_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
    br#"{"version":1,"keys":[
        {"id":"0123abcd","name":"till-7","blake3":"0000000000000000000000000000000000000000000000000000000000000000",
         "roles":["infer","viewer"],"models":["m"],"created_ms":1,"expires_ms":2,"max_rate":2.5,"max_concurrent":3},
        {"id":"89abcdef","name":"erp","blake3":"1111111111111111111111111111111111111111111111111111111111111111",
         "roles":[],"created_ms":1,"revoked_ms":4}]}"#,
];

#[test]
fn a_foreign_key_or_store_of_keys_is_one_or_none() {
    let [key, store] = KEYS;
    assert!(fuzz_key(key));
    assert_eq!(fuzz_keys(store), Some(2));
    for seed in 0..20_000 {
        fuzz_key(&mutate(seed, &[key]));
        fuzz_keys(&mutate(seed, &[store]));
    }
}

/// What is in a group: the number of the first entry, how many there are, and entries that put, remove and put nothing.
const JOURNAL: &[&[u8]] = &[
    b"\x01\0\0\0\0\0\0\0\x02\0\0\0\
      \x1d\0\0\0\x01\0\0\0\0\0key of twenty bytes.row\
      \x1a\0\0\0\x02\0\0\0\0\0key of twenty bytes,",
    b"\x01\0\0\0\0\0\0\0\x01\0\0\0\x1a\0\0\0\x01\0\0\0\0\0key of twenty bytes.",
];

#[test]
fn a_foreign_journal_never_breaks_the_feature_store() {
    for (seed, entries) in JOURNAL.iter().zip([2, 1]) {
        assert_eq!(journal::fuzz::fuzz(seed), entries, "{seed:?}");
    }
    for seed in 0..20_000 {
        journal::fuzz::fuzz(&mutate(seed, JOURNAL));
    }
}

/// What is in a block of a snapshot: keys and records.
const SNAPSHOT: &[&[u8]] =
    &[b"key of twenty bytes.\x06\0\0\0recordkey of twenty bytes,\0\0\0\0", b"key of twenty bytes.\x01\0\0\0-"];

#[test]
fn a_foreign_snapshot_never_breaks_the_feature_store() {
    for (seed, records) in SNAPSHOT.iter().zip([2, 1]) {
        assert_eq!(snapshot::fuzz::fuzz(seed), records, "{seed:?}");
    }
    for seed in 0..20_000 {
        snapshot::fuzz::fuzz(&mutate(seed, SNAPSHOT));
    }
}

/// A filter, another one, a template and a topic.
const TOPICS: &[&[u8]] = &[
    b"cameras/+/snapshot\ncameras/#\nvision/{1}/objects\ncameras/door/snapshot",
    b"#\n+/a/+\n{1}/{device}\nx/a/b",
    b"$share/g/a/+/#\na/b\n{2}-{model}/{1}\na/b",
    b"ledge/v1/+/infer/#\nledge/v1/box/+/m\nx/{2}\nledge/v1/box/infer/m/versions/3",
    b"$SYS/#\n+/+\n{1}\n$SYS/broker/load",
];

/// A path, and a message that it leads into.
const MESSAGES: &[&[u8]] = &[
    b"$.image\n{\"image\":\"data:image/jpeg;base64,/9j/4A==\",\"t\":1}",
    b"$['a b'][-1]\n{\"a b\":[1,-2.5,1e300,18446744073709551615],\"t\":0}",
    b"$.v\n{\"v\":[true,false,\"x\",\"\\ud83d\\ude00\"],\"t\":[3]}",
    b"$.labels[0]['\\u006cabel']\n{\"labels\":[{\"label\":\"tripod\"}],\"t\":true}",
    b"$\n{\"t\":\"AAEC\"}",
];

#[test]
fn foreign_topics_never_break_a_binding() {
    for seed in TOPICS {
        fuzz_topics(seed);
    }
    for seed in 0..50_000 {
        fuzz_topics(&mutate(seed, TOPICS));
    }
}

#[test]
fn foreign_messages_never_break_a_binding() {
    for seed in MESSAGES {
        fuzz_message(seed);
    }
    for seed in 0..5_000 {
        fuzz_message(&mutate(seed, MESSAGES));
    }
}

#[test]
fn a_foreign_model_toml_never_breaks_the_repository() {
    for seed in MODEL_TOML {
        model_config::fuzz(seed);
    }
    for seed in 0..5_000 {
        model_config::fuzz(&mutate(seed, MODEL_TOML));
    }
}

/// Declarations of every kind of key.
const FEATURE_VIEWS: &[&[u8]] = &[
    include_bytes!("../../configs/feature_views.d/example.toml.example"),
    b"[[entity]]\nname = \"m\"\nvalue_type = \"Int64\"\n[[feature_view]]\nname = \"v\"\nentities = [\"m\"]\nttl = 0\n\
      schema = [{ name = \"a\", dtype = \"Array(Bytes)\" }, { name = \"b\", dtype = \"Int32\" }]\n\
      [[feature_view.aggregation]]\ncolumn = \"b\"\nfunction = \"std\"\ntime_window = \"61s\"\n\
      [[feature_service]]\nname = \"s\"\nfeatures = [\"v\"]\n",
];

/// Rows: the event time, join keys, fields; records, of which those bytes are the end; and a catalog.
const FEATURE_RECORDS: &[&[u8]] = &[
    b"\x40\x42\x0f\0\0\0\0\0\x02\x02\x01a\x04\x07\0\0\0\0\0\0\0\x02\x01\x06\0\0\x80\x3f\x02\x10\x02\0\0\x80\x3f\0\0\xc0\x7f",
    b"\x01\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x40\x42\x0f\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\
      \x40\x42\x0f\0\0\0\0\0\x01\x03\x07\0\0\0\x03\x01\x07\x01\x02\x0c\x02\x01a\x02bc\x80\x01\x11\x02\0\x01",
    br#"{"format":1,"blake3":"00","catalog":{"generation":1,"last_view":1,"views":{}}}"#,
];

/// Values of every type.
const FEATURE_VALUES: &[&[u8]] = &[
    b"[1,2.0,-3e0,9007199254740993,1e16]",
    b"[1.5,null,-0.0,3.4028235e38,5e-324]",
    b"[\"AAEC\",\"\",\"2026-11-21T01:00:00.5Z\"]",
    b"[true,false]",
    b"9223372036854775807",
    b"\"1969-12-31 23:59:59.999999+02:00\"",
];

/// Metadata of every role, and the file of what is trusted, behind the number of their kind. Nobody signed them.
const METADATA: &[&[u8]] = &[
    br#"\0{"signatures":[{"keyid":"a","sig":"00ff"},{"keyid":"b","sig":""}],"signed":{"_type":"root","spec_version":"1.0.31","version":1,"expires":"2099-01-01T00:00:00Z","consistent_snapshot":true,"keys":{"a":{"keytype":"ed25519","scheme":"ed25519","keyval":{"public":"00"}}},"roles":{"root":{"keyids":["a"],"threshold":1},"timestamp":{"keyids":[],"threshold":0}}}}"#,
    br#"\1{"signatures":[],"signed":{"_type":"timestamp","spec_version":"1.0","version":2,"expires":"2099-01-01T00:00:00Z","meta":{"snapshot.json":{"version":2,"length":9,"hashes":{"sha256":"00"}}},"x-ledge-signed-at":"2026-11-20T00:00:00Z"}}"#,
    br#"\2{"signatures":[],"signed":{"_type":"snapshot","spec_version":"1.0","version":3,"expires":"2099-01-01T00:00:00Z","meta":{"targets.json":{"version":1},"models.json":{"version":18446744073709551615}}}}"#,
    br#"\3{"signatures":[],"signed":{"_type":"targets","spec_version":"1.0","version":4,"expires":"2099-01-01T00:00:00Z","targets":{"models/minilm/2/model.onnx":{"length":5,"hashes":{"sha256":"00"},"custom":{"ledge":{"schema":1}}}},"delegations":{"keys":{},"roles":[{"name":"models","keyids":[],"threshold":1,"terminating":true,"paths":["models/*/*/*","a[b-c]?/**"]},{"name":"bin","keyids":[],"threshold":1,"path_hash_prefixes":["0","ff"]}]}}}"#,
    br#"\4{"checksum":"00","files":{"root.json":"{}","proven":"2026-11-20T00:00:00Z"}}"#,
];

#[test]
fn foreign_metadata_is_never_trusted() {
    // The first byte is written as a digit here.
    let seeds: Vec<Vec<u8>> = METADATA.iter().map(|seed| [&[seed[1] - b'0'], &seed[2..]].concat()).collect();
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    for seed in &seeds {
        fuzz_metadata(seed);
    }
    for seed in 0..20_000 {
        fuzz_metadata(&mutate(seed, &seeds));
    }
}

#[test]
fn damaged_files_never_break_the_audit_log() {
    for seed in AUDIT_FILES {
        fuzz_audit_files(seed);
    }
    for seed in 0..20_000 {
        fuzz_audit_files(&mutate(seed, AUDIT_FILES));
    }
}

#[test]
fn foreign_declarations_never_break_the_feature_store() {
    for seed in FEATURE_VIEWS {
        fuzz_feature_views(seed);
    }
    for seed in 0..3_000 {
        fuzz_feature_views(&mutate(seed, FEATURE_VIEWS));
    }
}

#[test]
fn foreign_records_never_break_the_feature_store() {
    for seed in FEATURE_RECORDS {
        fuzz_feature_records(seed);
    }
    for seed in 0..50_000 {
        fuzz_feature_records(&mutate(seed, FEATURE_RECORDS));
    }
}

/// A shard with its next number and one key, and a head, each as key files have them below their seal.
fn feature_keys() -> [Vec<u8>; 2] {
    let entry = [&[1, 0, 0, 3][..], &[3; 16], &[9; 32]].concat();
    let shard = [&[3, 2, 0, 0, 0][..], &entry].concat();
    let head = [&[1, 1][..], &[5; 16], &[6; 32], &[0xff; 32]].concat();
    [shard, head]
}

#[test]
fn foreign_key_files_never_break_the_feature_store() {
    let seeds = feature_keys();
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    for seed in &seeds {
        assert_eq!(fuzz_feature_keys(seed), 1, "{seed:?}");
    }
    for seed in 0..50_000 {
        fuzz_feature_keys(&mutate(seed, &seeds));
    }
}

#[test]
fn foreign_values_never_break_the_feature_store() {
    for seed in FEATURE_VALUES {
        fuzz_feature_values(seed);
    }
    for seed in 0..50_000 {
        fuzz_feature_values(&mutate(seed, FEATURE_VALUES));
    }
}

/// Photographs of every format.
#[test]
fn a_foreign_photograph_never_breaks_the_decoder() {
    let photographs =
        ["coffee.png", "chelsea.jpg", "camera.webp"].map(|name| crate::daemon::data(&format!("photos/{name}")));
    let photographs = photographs.each_ref().map(Vec::as_slice);
    for seed in 0..60 {
        fuzz_image(&mutate(seed, &photographs));
    }
}

#[test]
fn foreign_json_never_breaks_the_protocol() {
    for seed in JSON {
        fuzz_json(seed);
    }
    for seed in 0..20_000 {
        fuzz_json(&mutate(seed, JSON));
    }
}

#[test]
fn foreign_binary_requests_never_break_the_protocol() {
    let corpus: Vec<Vec<u8>> = JSON.iter().map(|json| binary(json)).collect();
    let corpus: Vec<&[u8]> = corpus.iter().map(Vec::as_slice).collect();
    for seed in &corpus {
        fuzz_binary(seed);
    }
    for seed in 0..20_000 {
        fuzz_binary(&mutate(seed, &corpus));
    }
}

#[test]
fn a_foreign_proof_never_breaks_a_verifier_and_proves_nothing() {
    let hash = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let checkpoint = format!("ledge.audit/box-1/1\n8\n{hash}\n\n\u{2014} ledge.audit/box-1 AAAAAAAA\n");
    let proof = format!("c2sp.org/tlog-proof@v1\nextra eyJ2IjoxfQ==\nindex 7\n{hash}\n{hash}\n\n{checkpoint}");
    let seeds = [proof.as_bytes(), checkpoint.as_bytes()];
    assert!(fuzz_audit_proof(seeds[0]) && !fuzz_audit_proof(seeds[1]));
    let read = (0..50_000).filter(|seed| fuzz_audit_proof(&mutate(*seed, &seeds))).count();
    assert!(read > 1000, "some are still well-formed: {read}");
}

#[test]
fn damaged_aggregates_never_break_the_feature_store() {
    let seeds = window_seeds();
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    assert!(seeds.iter().all(|seed| fuzz_window(seed)));
    let read = (0..3_000).filter(|seed| fuzz_window(&mutate(*seed, &seeds))).count();
    assert!(read > 100, "some are states all the same: {read}");
}

#[test]
fn a_mutation_is_the_same_for_the_same_seed() {
    assert_eq!(mutate(7, JSON), mutate(7, JSON));
    assert!((0..100).filter(|seed| mutate(*seed, JSON) != mutate(seed + 1, JSON)).count() > 90);
}

/// What `fuzz_binary` reads: the header's length, the JSON, and the data that it announces (a NaN and a one, or `abc`).
fn binary(json: &[u8]) -> Vec<u8> {
    let length = u16::try_from(json.len()).unwrap().to_le_bytes();
    let has = |text: &[u8]| json.windows(text.len()).any(|window| window == text);
    let data: &[u8] = match (has(b"binary_data_size"), has(b"BYTES")) {
        (false, _) => b"",
        (true, true) => b"\x03\0\0\0abc",
        (true, false) => b"\0\0\xc0\x7f\0\0\x80\x3f",
    };
    [&length, json, data].concat()
}

/// One member of `corpus` with a few random changes, the same for the same seed.
pub fn mutate(seed: u64, corpus: &[&[u8]]) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut data = corpus[random.below(corpus.len())].to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(data.len() + 1);
        let end = (at + random.below(16)).min(data.len());
        match random.below(8) {
            0 if at < data.len() => data[at] ^= 1 << random.below(8),
            1 => drop(data.drain(at..end)),
            2 => drop(data.splice(at..end, PIECES[random.below(PIECES.len())].iter().copied())),
            3 => {
                let copy = data[at..end].to_vec();
                let to = random.below(data.len() + 1);
                data.splice(to..to, copy);
            }
            4 => {
                let other = corpus[random.below(corpus.len())];
                data.truncate(at);
                data.extend_from_slice(&other[random.below(other.len() + 1)..]);
            }
            // A number that is still a number gets past the JSON parser.
            5 | 6 => {
                if let Some(digit) = data.iter_mut().skip(at).find(|byte| byte.is_ascii_digit()) {
                    *digit = b"0123456789-.e"[random.below(13)];
                }
            }
            _ => drop(data.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
        }
    }
    data
}

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Neighbouring seeds start far apart, and none starts at zero.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`; 0 for a bound of 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap().checked_rem(bound).unwrap_or(0)
    }
}
