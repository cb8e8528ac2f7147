//! Inputs that the parsers accept: what mutations begin with. A function a target, by its name.

use ledge::audit::fuzz::{audit_certificate_seed, audit_checkpoint_seed, audit_proof_seed};
use ledge::drift::column::{Reading, Side};
use ledge::drift::encoding::encode;
use ledge::drift::watch::{ColumnReading, VersionWatch, WatchSettings};
use ledge::features::window::window_seeds;
use ledge::identity::sealing::fuzz::{sealed_file_seed, sealed_seed};
use ledge::updates::trust::fuzz::{metadata_seeds, trusted_files_seed};

/// A month of two callers, with a gap and a budget.
pub fn account_month() -> Vec<Vec<u8>> {
    vec![ledge::accounts::stored_example()]
}

/// Requests with data of every kind.
pub fn json() -> Vec<Vec<u8>> {
    all(&[
        br#"{"id":"1","inputs":[{"name":"IN","shape":[2,2],"datatype":"FP32","data":[[1,2.5],[-3e-1,4]]}],"outputs":[{"name":"OUT"}]}"#,
        br#"{"inputs":[{"data":[true,false],"name":"a","datatype":"BOOL","shape":[2]},{"name":"b","shape":[0,3],"datatype":"INT8","data":[]}]}"#,
        br#"{"parameters":{"binary_data_output":true,"timeout":10,"priority":1},"inputs":[{"name":"\u00e9","shape":[1,1,3],"datatype":"BYTES","data":["a","\n","\ud83d\ude00"]}]}"#,
        br#"{"inputs":[{"name":"u","shape":[2],"datatype":"UINT64","data":[18446744073709551615,0]},{"name":"h","shape":[2],"datatype":"FP16","data":[0.1,65504]},{"name":"w","shape":[1],"datatype":"BF16","data":[1e38]},{"name":"d","shape":[1],"datatype":"FP64","data":[1e308]}]}"#,
    ])
}

/// The same requests and some with data behind the JSON (a NaN and a one, or `abc`), each behind the length of its
/// header.
pub fn binary() -> Vec<Vec<u8>> {
    let announcing: &[&[u8]] = &[
    br#"{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}}],"outputs":[{"name":"y","parameters":{"binary_data":true,"classification":2}}]}"#,
    br#"{"inputs":[{"name":"s","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":7}},{"name":"j","shape":[1],"datatype":"INT16","data":[-7]}]}"#,
    ];
    let with_data = |json: Vec<u8>| {
        let length = u16::try_from(json.len()).unwrap().to_le_bytes();
        let has = |text: &[u8]| json.windows(text.len()).any(|window| window == text);
        let data: &[u8] = match (has(b"binary_data_size"), has(b"BYTES")) {
            (false, _) => b"",
            (true, true) => b"\x03\0\0\0abc",
            (true, false) => b"\0\0\xc0\x7f\0\0\x80\x3f",
        };
        [&length, &json[..], data].concat()
    };
    json().into_iter().chain(announcing.iter().map(|json| json.to_vec())).map(with_data).collect()
}

/// Calls of Feast's client.
pub fn feast() -> Vec<Vec<u8>> {
    all(&[
        br#"{"features":["driver_stats:trips"],"entities":{"driver_id":[1,2,null]},"full_feature_names":true}"#,
        br#"{"feature_service":"s","entities":{"a":["x"],"b":[1.5]}}"#,
        br#"{"push_source_name":"p","df":{"driver_id":[1],"event_timestamp":["2026-01-01T00:00:00Z"],"trips":[7]},"to":"online"}"#,
    ])
}

/// A code, and both halves of a session.
pub fn sign_in() -> Vec<Vec<u8>> {
    all(&[
        b"k7qm-3t9x woria",
        b"0123abcd.AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\n__Host-ledge-0123abcd=HxsdHBoZGBcWFRQTEhEQDw4NDAsKCQgHBgUEAwIBAAA; a=b",
    ])
}

/// Forms with a picture, between the boundaries `X`.
pub fn vision_form() -> Vec<Vec<u8>> {
    all(&[
        b"--X\r\nContent-Disposition: form-data; name=\"min_confidence\"\r\n\r\n0.4\r\n--X\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.jpg\"\r\nContent-Type: image/jpeg\r\n\r\n\xFF\xD8\xFF\r\n--X--\r\n",
        b"--X\r\nContent-Disposition: form-data; name=api_key\r\n\r\nledge_1\r\n--X\r\nContent-Disposition: form-data; name=\"image\"\r\n\r\n\r\n--X--",
    ])
}

/// Requests for embeddings in OpenAI's form.
pub fn grpc_request() -> Vec<Vec<u8>> {
    crate::grpc::requests()
}

pub fn embeddings_request() -> Vec<Vec<u8>> {
    all(&[
        br#"{"model":"all_minilm_l6_v2","input":"Where is my order?"}"#,
        br#"{"input":["a \"b\"","","caf\u00e9 \ud83d\ude00"],"model":"m","encoding_format":"base64","dimensions":384,"user":"x"}"#,
    ])
}

/// An invoice in each of the two syntaxes.
pub fn invoice_xml() -> Vec<Vec<u8>> {
    all(&[
        b"<r:CrossIndustryInvoice xmlns:r='r' xmlns:a='a'><r:ExchangedDocument><a:ID>R-1</a:ID></r:ExchangedDocument><r:SupplyChainTradeTransaction><a:ApplicableHeaderTradeSettlement><a:InvoiceCurrencyCode>EUR</a:InvoiceCurrencyCode><a:ApplicableTradeTax><a:CalculatedAmount>19.00</a:CalculatedAmount></a:ApplicableTradeTax></a:ApplicableHeaderTradeSettlement></r:SupplyChainTradeTransaction></r:CrossIndustryInvoice>",
        b"<Invoice><ID>R-1</ID><IssueDate>2026-11-24</IssueDate><LegalMonetaryTotal><TaxInclusiveAmount>119.00</TaxInclusiveAmount></LegalMonetaryTotal></Invoice>",
    ])
}

/// Requests to analyze a document: queries and bodies.
pub fn analyze_request() -> Vec<Vec<u8>> {
    all(&[
        b"api-version=2024-11-30&pages=1-3,5&features=barcodes,formulas&output=pdf&stringIndexType=utf16CodeUnit",
        br#"{"base64Source":"JVBERi0xLjcK\nJVBERg==","urlSource":null}"#,
    ])
}

/// Tokenizers of the three common kinds.
pub fn tokenizer() -> Vec<Vec<u8>> {
    all(&[
        br###"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":0,"content":"[PAD]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]}}},"decoder":null,"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":{"[PAD]":0,"[UNK]":1,"[CLS]":2,"the":3,"a":4,"##e":5}}}"###,
        br#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{"type":"Replace","pattern":{"Regex":"e+"},"content":"ea"},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":null,"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{"t":0,"h":1,"e":2,"a":3,"th":4},"merges":["t h"]}}"#,
        br#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":{"type":"NFKC"},"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":true},"post_processor":null,"decoder":null,"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["_the",-1.5],["a",-2.5]],"byte_fallback":false}}"#,
    ])
}

/// Headers of calls, a line each.
pub fn headers() -> Vec<Vec<u8>> {
    all(&[
        b"authorization: Bearer ledge_0123abcd_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\nx-ledge-priority: batch",
        b"x-api-key: k\nx-ledge-timeout-ms: 250\ncontent-encoding: gzip\naccept-encoding: gzip;q=0, deflate, *",
        b"inference-header-content-length: 18446744073709551615\nauthorization: bearer\nx-ledge-priority: 2",
    ])
}

/// A key.
pub fn api_key() -> Vec<Vec<u8>> {
    all(&[b"ledge_0123abcd_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"])
}

/// A join file of `ledge-platform box add`, and an answer of `box answer`.
pub fn join_file() -> Vec<Vec<u8>> {
    let answer =
        br#"{"version":1,"state":"waiting","certificate":null,"ca":null,"reason":"approval by hand is missing"}"#;
    vec![include_bytes!("../../data/membership/box-2.join").to_vec(), answer.to_vec()]
}

/// A question of a platform.
pub fn question() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../data/membership/question.json").trim_ascii_end().to_vec()]
}

/// A backup of a box, with a long name in it.
pub fn box_backup() -> Vec<Vec<u8>> {
    use ledge::cli::backup::archive::{ArchiveKind, ArchiveWriter, BackupManifest, FORMAT_VERSION, FileFacts};
    let manifest = BackupManifest {
        format: FORMAT_VERSION,
        kind: ArchiveKind::Box,
        pair: "0123456789abcdef".repeat(2),
        ledge: "0.1.0".to_owned(),
        device: "till-7".to_owned(),
        created: "2026-12-02T08:00:00Z".to_owned(),
        formats: "audit 2\n".to_owned(),
        audit_key: Some("ledge.audit/till-7+00000000+AA".to_owned()),
        platform: None,
        has_feature_backup: true,
        left_out: vec!["/etc/secret".to_owned()],
        entries: Vec::new(),
    };
    let facts = FileFacts { mode: 0o600, of_service: true, modified_s: 1_796_256_000 };
    let mut writer = ArchiveWriter::new(Vec::new(), 1_796_256_000).unwrap();
    let long = format!("state/models/{}/model.onnx", "long".repeat(30));
    for (path, content) in [("state/keys.json", &b"{}"[..]), ("features/00000000", &[7; 600]), (&long, b"weights")] {
        writer.add(path, facts, content.len() as u64, content).unwrap();
    }
    vec![writer.finish(manifest).unwrap()]
}

/// A certificate, and a list of revoked ones.
pub fn certificate() -> Vec<Vec<u8>> {
    let authority = crate::certificates::Authority::new();
    let certificate = crate::tls_kit::der(&authority.issue("till-7").certificate);
    let list = authority.revoke(&[]);
    let list: String = list.lines().filter(|line| !line.starts_with("-----")).collect();
    let list = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, list).unwrap();
    vec![certificate, list]
}

/// Photographs of every format.
pub fn photograph() -> Vec<Vec<u8>> {
    ["coffee.png", "chelsea.jpg", "camera.webp"].map(|name| crate::daemon::data(&format!("photos/{name}"))).into()
}

/// Photographs in baseline JPEG: in colour, and gray and turned.
pub fn scaled_jpeg() -> Vec<Vec<u8>> {
    ["chelsea.jpg", "camera_orientation6.jpg"].map(|name| crate::daemon::data(&format!("photos/{name}"))).into()
}

/// Photographs, which have a size.
pub fn picture_size() -> Vec<Vec<u8>> {
    photograph()
}

/// CSV with quotes, empty cells and lines, and no end of the last line.
pub fn csv_rows() -> Vec<Vec<u8>> {
    all(&[b"a,b\n1,2\n", b"a,\"b \"\"x\"\"\"\r\n,\"\n,\"\r\n\r\n\xc3\xa9,-2.5", b"\xef\xbb\xbfa\nx\n"])
}

/// PDF files with a text layer, one of them with an object that is reached twice.
pub fn pdf() -> Vec<Vec<u8>> {
    vec![crate::document_pdf::invoice(), crate::document_pdf::two_pages()]
}

/// A TIFF of two pages and a smaller copy of one.
pub fn tiff() -> Vec<Vec<u8>> {
    vec![crate::document_pdf::small_tiff()]
}

/// A GIF with interlaced rows, and BMP files with pixels and with runs.
pub fn bitmap() -> Vec<Vec<u8>> {
    let runs = crate::document_bitmap::runs();
    vec![crate::daemon::data("documents/receipt.gif"), crate::document_bitmap::small_bmp(), runs]
}

/// Documents that become a searchable PDF: PDF files, and a picture.
pub fn searchable_pdf() -> Vec<Vec<u8>> {
    let pdfs = [crate::document_pdf::invoice(), crate::document_pdf::two_pages()];
    let photo = crate::daemon::data("photos/camera_orientation6.jpg");
    pdfs.into_iter().chain([crate::daemon::data("documents/encrypted.pdf"), photo]).collect()
}

/// Results of orders, and the head of an answer with an output of FP32 [1, 3].
pub fn child_message() -> Vec<Vec<u8>> {
    let answer = [
        &[1, 0, 1, 11, 2, 1, 3, 0, 12][..],
        // The times of the run by phase, and of the job.
        &[0, 5, 0, 6, 0, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 9],
    ];
    // The facts of a model file: external data, names, and seven kinds of harm, or the scale of an input.
    let facts = [&b"\x00\x03\x07\x00\x01\x01w\x09\x01\x01\x01x\x01\x01y"[..], &[0; 10]];
    let scale = [&[0, 3, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, b'q'][..], &0.5_f32.to_le_bytes(), &[2, 0]];
    let refused = [2, 3].map(|kind| [&[0, kind, 7, 1, 3], &b"bad"[..]].concat());
    let [bound, file] = refused;
    let opened = b"\x00\x04\x07\x00\x061.23.0".to_vec();
    vec![vec![0, 2, 7, 0], bound, answer.concat(), facts.concat(), scale.concat(), file, opened]
}

/// A result of each step of a page, for two lines.
pub fn step_result() -> Vec<Vec<u8>> {
    let corners = [2.0_f32, 3.0, 40.0, 3.0, 40.0, 9.0, 2.0, 9.0].map(f32::to_le_bytes).concat();
    let shares = [&[2][..], &[0.2_f32, 0.9].map(f32::to_le_bytes).concat()].concat();
    let reading = [&b"\x02ab"[..], &0.5_f32.to_le_bytes(), &shares, &shares].concat();
    vec![
        vec![0, 100, 50, 2],
        [&[1, 100, 50, 0, 2][..], &corners, &corners, &[0]].concat(),
        vec![2, 2, 1, 0],
        [&[3, 2][..], &reading, &reading].concat(),
    ]
}

/// A page of 33 by 25 pixels, and a map of 32 columns with two lines in it.
pub fn document_steps() -> Vec<Vec<u8>> {
    let map = (0..24 * 32).map(|at| if matches!(at / 32, 4..9 | 14..19) && matches!(at % 32, 3..28) { 240 } else { 3 });
    vec![[0, 32, 32, 24, 200, 7].into_iter().chain(map).collect()]
}

/// The output of the process that draws pages.
pub fn page_messages() -> Vec<Vec<u8>> {
    all(&[
        b"{\"document\":{\"pages\":2}}\n{\"picture\":{\"width\":2,\"height\":1}}\n......",
        br#"{"text":{"width":9,"height":9,"lines":[{"text":"a","left":1.0,"top":1.5,"right":2.0,"bottom":3.0}]}}"#,
        br#"{"refused":{"pages":{"pages":51,"most":50}}}"#,
    ])
}

/// Places of characters, eight bytes each.
pub fn text_layer() -> Vec<Vec<u8>> {
    vec![(0..64_u8).flat_map(|index| [107, 100 + index, 107, 100, b'a' + index % 26, 30, 10, 0]).collect()]
}

/// Rows with values of every kind.
pub fn table_rows() -> Vec<Vec<u8>> {
    all(&[
        br#"{"a":1,"b":"x"}"#,
        br#"[{"a":-2.5e3,"b":null},{"b":true,"c":[{"d":0}]},{}]"#,
        br#"[{"\u0061":9223372036854775807,"b":"\n"}]"#,
    ])
}

/// Challenges of cameras.
pub fn camera_login() -> Vec<Vec<u8>> {
    all(&[
        b"Basic realm=\"IP Camera\"",
        b"Digest realm=\"IP Camera\", nonce=\"4f6e\", qop=\"auth\", algorithm=MD5, opaque=\"7a\"",
        b"Digest realm=\"a \\\"b\\\"\", nonce=\"c\", qop=\"auth,auth-int\", algorithm=SHA-256-sess, userhash=false",
        b"Newauth a=b, Digest realm=\"a\",nonce=\"b\"",
    ])
}

/// Values of every type.
pub fn feature_values() -> Vec<Vec<u8>> {
    all(&[
        b"[1,2.0,-3e0,9007199254740993,1e16]",
        b"[1.5,null,-0.0,3.4028235e38,5e-324]",
        b"[\"AAEC\",\"\",\"2026-11-21T01:00:00.5Z\"]",
        b"[true,false]",
        b"9223372036854775807",
        b"\"1969-12-31 23:59:59.999999+02:00\"",
    ])
}

/// Packets of a broker, behind the version (0: MQTT 5, 1: 3.1.1), how the stream is cut, and the largest message taken.
pub fn mqtt_packets() -> Vec<Vec<u8>> {
    all(&[
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
])
}

/// A filter, another one, a template and a topic.
pub fn topics() -> Vec<Vec<u8>> {
    all(&[
        b"cameras/+/snapshot\ncameras/#\nvision/{1}/objects\ncameras/door/snapshot",
        b"#\n+/a/+\n{1}/{device}\nx/a/b",
        b"$share/g/a/+/#\na/b\n{2}-{model}/{1}\na/b",
        b"ledge/v1/+/infer/#\nledge/v1/box/+/m\nx/{2}\nledge/v1/box/infer/m/versions/3",
        b"$SYS/#\n+/+\n{1}\n$SYS/broker/load",
    ])
}

/// A path, and a message that it leads into.
pub fn message() -> Vec<Vec<u8>> {
    all(&[
        b"$.image\n{\"image\":\"data:image/jpeg;base64,/9j/4A==\",\"t\":1}",
        b"$['a b'][-1]\n{\"a b\":[1,-2.5,1e300,18446744073709551615],\"t\":0}",
        b"$.v\n{\"v\":[true,false,\"x\",\"\\ud83d\\ude00\"],\"t\":[3]}",
        b"$.labels[0]['\\u006cabel']\n{\"labels\":[{\"label\":\"tripod\"}],\"t\":true}",
        b"$\n{\"t\":\"AAEC\"}",
    ])
}

/// Conditions, and a message that meets them.
pub fn conditions() -> Vec<Vec<u8>> {
    all(&[
        b"{\"$.type\":[\"climate\",21.5,true],\"{1}\":\"a\",\"{2}\":{\"not\":\"c\"}}\n{\"type\":\"climate\"}",
        b"{\"$.v['a b'][-1]\":{\"exists\":true},\"$.error\":{\"exists\":false}}\n{\"v\":{\"a b\":[1]}}",
        b"{\"$\":[\"ON\",\"OFF\"]}\nON",
        b"{\"$\":{\"not\":[\"unavailable\",\"unknown\"]}}\n21.4",
    ])
}

/// Numbers as devices write them.
pub fn bare_value() -> Vec<Vec<u8>> {
    all(&[b"21.4", b"-3", b"1e3", b"+5\n", b" 18446744073709551615", b"5.0", b"-1.25E-7"])
}

/// Model configs of every kind of key.
pub fn model_toml() -> Vec<Vec<u8>> {
    all(&[
        b"runtime = \"auto\"\nmax_batch_size = 8\nversion_policy = { latest = 2 }\n[instance_group]\ncount = 2\nthreads = 1\n",
        b"version_policy = \"all\"\n[queue]\nmax_size = 3\ndefault_timeout_ms = 4\n[[golden]]\nfile = \"a.json\"\ntolerance = 0.1\n",
        b"[[output]]\nname = \"y\"\nlabels = \"l.txt\"\n[pipeline.image_classification]\ncrop = [2, 2]\nmean = [1.0, 2.0, 3.0]\n",
        b"version_policy = { specific = [1, 3] }\n[[input]]\nname = \"x\"\ndatatype = \"FP32\"\nshape = [-1, 4]\n",
    ])
}

/// A small model, and others with their weights in a separate file.
pub fn onnx() -> Vec<Vec<u8>> {
    let model = |name| std::fs::read(crate::daemon::model_folder(name).join("1/model.onnx")).unwrap();
    let [plain, external, branch, table] = ["add_sub", "external_data", "hostile_branch", "word_vectors"].map(model);
    // In a separate folder with a name that differs by a digit from one that leads out.
    let mut below = external.clone();
    let at = below.windows(11).position(|window| window == b"weights.bin").unwrap();
    below[at..at + 11].copy_from_slice(b"0./data.bin");
    let classifier = crate::daemon::data("tables/machine_condition/1/model.onnx");
    vec![plain, external, below, branch, table, classifier]
}

/// An IR with a constant.
pub fn ir() -> Vec<Vec<u8>> {
    vec![std::fs::read(crate::daemon::model_folder("ir_add").join("1/model.xml")).unwrap()]
}

/// A classifier that takes and gives integers.
pub fn tflite() -> Vec<Vec<u8>> {
    vec![std::fs::read(crate::daemon::model_folder("quantized_colours").join("1/model.tflite")).unwrap()]
}

/// Declarations of every kind of key.
pub fn feature_views() -> Vec<Vec<u8>> {
    all(&[
    include_bytes!("../../../configs/feature_views.d/example.toml.example"),
    b"[[entity]]\nname = \"m\"\nvalue_type = \"Int64\"\n[[feature_view]]\nname = \"v\"\nentities = [\"m\"]\nttl = 0\n\
      schema = [{ name = \"a\", dtype = \"Array(Bytes)\" }, { name = \"b\", dtype = \"Int32\" }]\n\
      [[feature_view.aggregation]]\ncolumn = \"b\"\nfunction = \"std\"\ntime_window = \"61s\"\n\
      [[feature_service]]\nname = \"s\"\nfeatures = [\"v\"]\n",
])
}

/// Metadata of every role.
pub fn metadata() -> Vec<Vec<u8>> {
    metadata_seeds()
}

/// Manifests of rollouts: with everything, and with the least.
pub fn manifest() -> Vec<Vec<u8>> {
    all(&[
        br#"{"schema":1,"fleet":"shops","published":"2026-11-20T00:00:00Z","rollouts":[{"id":"r1","target":"models/minilm/2/model.onnx","start":"2026-11-20T01:00:00+01:00","waves":[{"seed_below":20,"after_s":3600},{"seed_below":2048,"after_s":86400}],"paused":true,"groups":["north"],"devices":["till-7"],"gate":{"golden_min":0.9},"shadow":{"share":0.5},"max_attempts":3,"byte_budget":1000,"allow_downgrade":true,"requires_ledge":"0.1.0"},{"id":"r2","target":"models/colours/1/model.tflite","start":"2026-11-20T00:00:00Z","waves":"ohno"}],"pins":{"till-7":{"models/minilm":1}},"revoked":["models/minilm/1"],"minimum":{"models/colours":1}}"#,
        br#"{"schema":1,"fleet":"shops","published":"2026-11-20T00:00:00Z","rollouts":[]}"#,
    ])
}

/// Two records.
pub fn audit_bundle() -> Vec<Vec<u8>> {
    all(&[b"\0\x03abc\0\x01x"])
}

/// Records of a few kinds.
pub fn audit_record() -> Vec<Vec<u8>> {
    let seeds: &[&[u8]] =
        &[br#"{"v":1,"seq":7,"ts":"2026-01-01T00:00:00.250Z","actor":{"kind":"local"},"event":{"action":"stopped"}}"#];
    seeds.iter().map(|seed| seed.to_vec()).collect()
}

/// Paths of records and of hashes.
pub fn audit_path() -> Vec<Vec<u8>> {
    all(&[b"tile/entries/x001/x234/067.p/112", b"tile/2/007"])
}

/// One that is signed.
pub fn audit_checkpoint() -> Vec<Vec<u8>> {
    vec![audit_checkpoint_seed()]
}

/// One that holds.
pub fn audit_proof() -> Vec<Vec<u8>> {
    vec![audit_proof_seed()]
}

/// One that is valid.
pub fn audit_certificate() -> Vec<Vec<u8>> {
    vec![audit_certificate_seed()]
}

/// The file with two of them.
pub fn trusted_files() -> Vec<Vec<u8>> {
    vec![trusted_files_seed()]
}

/// A store of two keys.
pub fn key_store() -> Vec<Vec<u8>> {
    all(&[br#"{"version":1,"keys":[
        {"id":"0123abcd","name":"till-7","blake3":"0000000000000000000000000000000000000000000000000000000000000000",
         "roles":["infer","viewer"],"models":["m"],"created_ms":1,"expires_ms":2,"max_rate":2.5,"max_concurrent":3},
        {"id":"89abcdef","name":"erp","blake3":"1111111111111111111111111111111111111111111111111111111111111111",
         "roles":[],"created_ms":1,"revoked_ms":4}]}"#])
}

/// Sealed bytes.
pub fn sealed() -> Vec<Vec<u8>> {
    vec![sealed_seed()]
}

/// A sealed file.
pub fn sealed_file() -> Vec<Vec<u8>> {
    vec![sealed_file_seed()]
}

/// Two keys in digits, and one of random bytes.
pub fn master_keys() -> Vec<Vec<u8>> {
    vec![[&[b'a'; 64][..], b"\n", &[b'0'; 64], b"\n"].concat(), vec![0xc4; 32]]
}

/// The content of a group: the number of the first entry, how many there are, and entries that put, remove and put
/// nothing.
pub fn journal() -> Vec<Vec<u8>> {
    all(&[
        b"\x01\0\0\0\0\0\0\0\x02\0\0\0\
      \x1d\0\0\0\x01\0\0\0\0\0key of twenty bytes.row\
      \x1a\0\0\0\x02\0\0\0\0\0key of twenty bytes,",
        b"\x01\0\0\0\0\0\0\0\x01\0\0\0\x1a\0\0\0\x01\0\0\0\0\0key of twenty bytes.",
    ])
}

/// The content of a block of a snapshot: keys and records, in version 1, and in version 2, where keys share bytes; and
/// changes of index, statistics and footer that change nothing.
pub fn snapshot() -> Vec<Vec<u8>> {
    all(&[
        b"key of twenty bytes.\x06\0\0\0recordkey of twenty bytes,\0\0\0\0",
        b"key of twenty bytes.\x01\0\0\0-",
        b"\0key of twenty bytes.\x06record\x13/\0\x03wenty is a number\x01-",
        b"\0key of twenty bytes.\x06record\x13,\0",
        &[0; 128],
    ])
}

/// Catalogs, below their checksum.
pub fn feature_catalog() -> Vec<Vec<u8>> {
    all(&[br#"{"generation":1,"last_view":1,"views":{}}"#])
}

/// A shard with its next number and one key, and a head, each in the decrypted form of key files.
pub fn feature_keys() -> Vec<Vec<u8>> {
    let entry = [&[1, 0, 0, 3][..], &[3; 16], &[9; 32]].concat();
    let shard = [&[3, 2, 0, 0, 0][..], &entry].concat();
    let head = [&[1, 1][..], &[5; 16], &[6; 32], &[0xff; 32]].concat();
    vec![shard, head]
}

/// Rows in both forms: the event time, join keys, values; and records in both forms, of which those bytes are the end.
pub fn feature_records() -> Vec<Vec<u8>> {
    all(&[
    b"\x40\x42\x0f\0\0\0\0\0\x02\x02\x01a\x04\x07\0\0\0\0\0\0\0\x02\x01\x06\0\0\x80\x3f\x02\x10\x02\0\0\x80\x3f\0\0\xc0\x7f",
    b"\x01\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x40\x42\x0f\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\
      \x40\x42\x0f\0\0\0\0\0\x01\x03\x07\0\0\0\x03\x01\x07\x01\x02\x0c\x02\x01a\x02bc\x80\x01\x11\x02\0\x01",
    b"\0\x80\x4d\xd2\xa9\x60\x06\0\0\x02\x02\x01a\x04\x07\0\0\0\0\0\0\0\
      \x05\x01\x86\x02\0\0\x80\x3f\0\0\xc0\x7f\x01\x07\x01\0\x4c\x01\x01a\x02\0\x02bc",
    b"\x02\xac\x02\x80\x01\0\x80\x4d\xd2\xa9\x60\x06\0\0\x01\x03\x07\0\0\0\x03\x01\x47\x01\0\x01",
])
}

/// States of few events and of many.
pub fn window() -> Vec<Vec<u8>> {
    window_seeds()
}

/// Watches on a model whose reference is fixed, and on one that learns. Without the head, which a change would damage.
pub fn drift_watch() -> Vec<Vec<u8>> {
    let settings = WatchSettings { window_ms: 1, calls_min: 40, learning_windows: 2, persistence: 1 };
    let mut watch = VersionWatch::new(settings, None, 0);
    let mut seeds = Vec::new();
    for call in 0..200_u32 {
        let reading = |name: &str, side, reading| ColumnReading { name: name.to_owned(), side, reading };
        let number = Reading::Number(f64::from(call % 37));
        watch.observe(
            &[reading("a", Side::Input, number), reading("y", Side::Output, Reading::Value(call % 3))],
            u64::from(call),
        );
        if call % 90 == 89 {
            seeds.push(encode(watch.state())[8..].to_vec());
        }
    }
    seeds
}

/// Calls of the model repository's routes.
pub fn repository_call() -> Vec<Vec<u8>> {
    all(&[
        br#"{"ready":true}"#,
        br#"{"parameters":{"config":"{}","file:1/model.onnx":"AAAA","x":1}}"#,
        br#"{"parameters":{"unload_dependents":true}}"#,
    ])
}

/// Tables with columns of a few types, and one that no view has.
pub fn csv() -> Vec<Vec<u8>> {
    all(&[
        b"Int64,String,Float64,Bool,Array(Int32),UnixTimestamp,event_timestamp,other\n-1,a b,1.5,True,\"[1,2]\",1969-12-31 23:59:59+02:00,2026-11-20T00:00:00Z,x\n,,,,,,1795132800,\n",
        b"Bytes,Float32,Int32,Array(String),Array(Float64)\nAAEC,3.0,3.0,\"[\"\"a\"\"]\",\"[1e16,-0.0]\"\n",
    ])
}

/// The same in lines of JSON.
pub fn json_lines() -> Vec<Vec<u8>> {
    all(&[
        br#"{"Int64":-1,"String":"a","Float64":1.5,"Bool":true,"Array(Int32)":[1,2],"event_timestamp":"2026-11-20T00:00:00Z"}"#,
        b"{\"Bytes\":\"AAEC\",\"UnixTimestamp\":\"2026-11-20T00:00:00Z\"}\n\n{\"Array(Float32)\":[1.5,null]}\n",
    ])
}

/// Words of a process that tries a release.
pub fn trial_report() -> Vec<Vec<u8>> {
    let said = b"something else\n\"passed\"\n{\"failed\":{\"cause\":\"load\",\"detail\":\"line 2\"}}\n";
    vec![said.to_vec(), [&said[..], &b"a long last word ".repeat(30)].concat()]
}

/// Custom data of targets.
pub fn release_description() -> Vec<Vec<u8>> {
    all(&[
        br#"{"ledge":{"schema":1}}"#,
        br#"{"ledge":{"schema":1,"files":["part-1.bin","part-2.bin"],"semantic_version":"1.2.3","requires":{"ledge":"0.1.0","runtimes":["openvino"],"architectures":["x86_64"],"memory_mb":512},"limits":{"memory_mb":1024,"seconds":60},"inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],"outputs":[],"accuracy":{"top1":0.7},"reference":{"output":"y","classes":[0.25,0.75]},"tolerance":0.01}}"#,
        br#"{"ledge":"{\"schema\":1,\"files\":[\"a\"]}"}"#,
    ])
}

/// Targets of a catalogue with their custom data.
pub fn catalogue() -> Vec<Vec<u8>> {
    all(&[
        br#"{"m/1/model.onnx":null,"m/golden/cat.png":null,"m/model.toml":{"ledge":"{\"description\":\"Finds cats\",\"license\":\"MIT\",\"release\":\"1.0.0\"}"}}"#,
        br#"{"m/model.toml":{"ledge":"{\"accuracy\":\"9 of 10\\u001b[31m\",\"source\":\"PyPI\"}"},"n/a/b/c/d":{},"o/../p":1}"#,
    ])
}

/// Archives of a model's folder: with one file, and with a folder and two files.
pub fn upload() -> Vec<Vec<u8>> {
    let record = |path: &str, kind: u8, content: &[u8]| {
        let mut header = [0; 512];
        header[..path.len()].copy_from_slice(path.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        let padding = vec![0; content.len().next_multiple_of(512) - content.len()];
        [&header[..], content, &padding].concat()
    };
    let end = vec![0; 1024];
    vec![
        [record("1/model.onnx", b'0', b"weights"), end.clone()].concat(),
        [record("./", b'5', b""), record("model.toml", b'0', b""), record("./1/model.onnx", b'0', &[7; 600]), end]
            .concat(),
    ]
}

/// Answers that open a way, one of them with bytes of the destination behind it.
pub fn proxy_answer() -> Vec<Vec<u8>> {
    all(&[b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n", b"HTTP/1.0 200\r\n\r\n\x16\x03\x01\x02\0\r\n\r\n"])
}

/// A manifest, as it is kept.
pub fn kept_manifest() -> Vec<Vec<u8>> {
    all(&[
        br#"{"repository":"https://updates.example/","expires_ms":1800000000000,"sha256":"a18ecf6c15a7566d14c79680600b14b63b55562217f9048c571f84b971cf4d73","manifest":"{\"schema\":1,\"fleet\":\"shops\",\"published\":\"2026-11-20T00:00:00Z\",\"rollouts\":[]}"}"#,
    ])
}

/// States below their checksum: nothing, a release that is live, and one on its way.
pub fn update_states() -> Vec<Vec<u8>> {
    all(&[
        b"{}",
        br#"{"models/a":{"committed":{"version":3,"digest":"abababababababababababababababababababababababababababababababab"},"committed_by":"r0","committed_golden_min":0.5,"previous":{"version":2,"digest":"abababababababababababababababababababababababababababababababab"},"refused":[{"rollout":"r1","digest":"abababababababababababababababababababababababababababababababab","version":4}],"pinned":true}}"#,
    ])
}

/// Records of a version that was served, and of one that failed to load.
pub fn load_records() -> Vec<Vec<u8>> {
    all(&[
        br#"{"format":1,"versions":[{"model":"m","version":1,"served":{"conditions":"c","digest":"ab","files":[{"path":"model.onnx","hashed_as":"model","is_model":true,"bytes":7,"mark":{"device":1,"inode":2,"modified_s":3,"modified_ns":4}}],"took_ms":12,"checked":{"content":"c d","runtime":"openvino"}}},{"model":"n","version":2,"failure":{"content":"d","reason":"it died","timeouts":1,"streak":{"failures":2,"first_ms":5,"last_ms":6}}}]}"#,
    ])
}

/// A choice, and how it came about.
pub fn profile() -> Vec<Vec<u8>> {
    all(&[
        br#"{"choice":{"runtime":"openvino","threads":2,"instances":1,"batch":4},"effort":"tuned","goal":"latency","measured":"p50 2.1 ms"}"#,
    ])
}

/// Counts of two destinations.
pub fn egress_counts() -> Vec<Vec<u8>> {
    all(&[
        br#"{"schema":1,"since":"2026-11-20T00:00:00Z","after_damage":false,"destinations":[{"destination":"a:443","region":"eu","connections":3,"failures":1,"sent":{"audit":7},"received":9},{"destination":"b:8883","region":"","connections":0,"failures":0,"sent":{},"received":18446744073709551615}]}"#,
    ])
}

/// Files with the acknowledged position of the journal, and its gaps.
pub fn acknowledged() -> Vec<Vec<u8>> {
    all(&[b"LEDGEACK\x01\0p\x11\x01\0\0\0\0\0\x03\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x83\x12\x88u"])
}

/// Entities of two kinds, and a key that is doomed.
pub fn entity_profiles() -> Vec<Vec<u8>> {
    vec![ledge::features::fuzz::entity_profiles_seed()]
}

pub fn erased_entities() -> Vec<Vec<u8>> {
    all(&[
        br#"{"secret":"abababababababababababababababababababababababababababababababab","doomed_keys":[5,7],"erased":[{"join_keys":["customer"],"entities":{"cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd":{"seq":40,"at_ms":6}}},{"join_keys":["customer","shop"],"entities":{}}]}"#,
    ])
}

/// A detector, a profile of rows and a series of a set, each after some samples.
pub fn anomaly_state() -> Vec<Vec<u8>> {
    use ledge::anomaly::{MonitorSet, Pace, RowProfile, SeriesDetector};
    let pace = Pace::new(60_000, 1.0).unwrap();
    let mut detector = SeriesDetector::new(pace);
    let mut profile = RowProfile::new(3, 1e-3).unwrap();
    let mut set = MonitorSet::default();
    set.watch("memory", pace, None).unwrap();
    for minute in 0..200_i32 {
        let value = f64::from(minute * 7919 % 100);
        detector.observe(i64::from(minute) * 60_000, value).unwrap();
        profile.observe(&[Some(value), None, Some(-value)]).unwrap();
        set.observe(i64::from(minute) * 60_000, &[("memory", value)]);
    }
    [detector.encode(), profile.encode()].into_iter().chain(set.encode()).collect()
}

fn all(seeds: &[&[u8]]) -> Vec<Vec<u8>> {
    seeds.iter().map(|seed| seed.to_vec()).collect()
}

pub fn history_record() -> Vec<Vec<u8>> {
    vec![ledge::history::fuzz::record_bytes(490_896, 60, &[2.5, 0.0, f32::NAN, 0.25])]
}

pub fn history_query() -> Vec<Vec<u8>> {
    let texts =
        ["", "series=caller%3Akey%3Atill&resolution=1m&columns=p99_s,calls_per_s&format=csv&from=2026-01-01T00:00:00Z"];
    texts.map(|text| text.as_bytes().to_vec()).into()
}
