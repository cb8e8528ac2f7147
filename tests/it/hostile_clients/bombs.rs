//! Small requests that would be large ones: heads, paths, packed bodies, nests of JSON, pictures.

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use super::{INFER, Target, WAYS, Way, head, tensor};
use crate::client::Client;
use crate::daemon::{TestRoot, data};

/// `http.max_body_bytes` as it ships.
const LARGEST_BODY: usize = 64 << 20;

/// The most memory that a bomb of this file may take while it is handled: twice the largest body, and the reserve of
/// an allocator.
const ROOM_KB: u64 = 200 << 10;

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A PNG that says it is 65535 pixels wide and high.
pub fn png() -> Vec<u8> {
    let chunk = |name: &[u8], data: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(&[name, data].concat());
        [&u32::try_from(data.len()).unwrap().to_be_bytes(), name, data, &crc.sum().to_be_bytes()].concat()
    };
    let header = chunk(b"IHDR", b"\0\0\xff\xff\0\0\xff\xff\x08\x06\0\0\0");
    [b"\x89PNG\r\n\x1a\n", &header[..], &chunk(b"IDAT", &zlib(&[0; 1000])), &chunk(b"IEND", b"")].concat()
}

/// A photograph as JPEG that says as much of itself.
pub fn jpeg() -> Vec<u8> {
    let mut picture = data("photos/chelsea.jpg");
    let frame = picture.windows(2).position(|marker| matches!(marker, [0xff, 0xc0 | 0xc2])).unwrap();
    picture[frame + 5..frame + 9].fill(0xff);
    picture
}

/// A lossless WebP of 16384 pixels each way, which is the most that it can say.
pub fn webp() -> Vec<u8> {
    b"RIFF\x12\0\0\0WEBPVP8L\x05\0\0\0\x2f\xff\xff\xff\x0f\0".to_vec()
}

#[test]
fn heads_and_paths_without_end_are_refused() {
    let target = Target::start(&[]);
    let long = "x".repeat(70_000);
    let cases = [
        ("many fields", head(&"x: y\r\n".repeat(200)), 431),
        ("a large head", head(&format!("x: {}\r\n", long.repeat(10))), 431),
        ("a long name", head(&format!("{}: x\r\n", long.repeat(10))), 431),
        ("a long path", format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", long.repeat(10)), 431),
        ("a long verb", format!("{} / HTTP/1.1\r\nhost: localhost\r\n\r\n", long.repeat(10)), 431),
    ];
    let endless = format!("GET / HTTP/1.1\r\nx: {}", long.repeat(20));
    let cases = cases.into_iter().chain([("a head without an end", endless, 431)]);
    for (name, request, status) in cases {
        for way in WAYS {
            let began = Instant::now();
            assert_eq!(target.statuses(way, request.as_bytes()), [status], "{way:?}, {name}");
            assert!(began.elapsed() < Duration::from_millis(900), "{way:?}, {name}: the time for a head ended it");
        }
    }
    target.serves();
}

#[test]
fn a_packed_bomb_is_unpacked_to_the_limit_and_no_further() {
    let target = Target::start(&[]);
    let before = target.rss_kb();
    let zeros = vec![b' '; 300 << 20];
    let (gzip, zlib) = (gzip(&zeros), zlib(&zeros));
    drop(zeros);
    let twice = self::gzip(&gzip);
    for way in WAYS {
        let post = |encoding: &str, body: &[u8]| {
            Client::over(target.connect(way)).post(INFER, &[("content-encoding", encoding)], body).status
        };
        assert_eq!([post("gzip", &gzip), post("deflate", &zlib)], [413, 413], "{way:?}");
        // Layers are not peeled off, and no other packing is known.
        assert_eq!([post("gzip, gzip", &twice), post("zstd", b"\x28\xb5\x2f\xfd"), post("br", b"x")], [415; 3]);
        assert_eq!([post("gzip", &twice), post("gzip", &gzip[..100]), post("deflate", b"x")], [400; 3]);
    }
    let peak = target.peak_kb();
    assert!(peak < before + ROOM_KB, "{before} kB before, {peak} kB at most");
    // The limit itself is unpacked, and a byte more is not.
    let body = tensor(1);
    let padded = |more: usize| self::gzip(format!("{body}{}", " ".repeat(LARGEST_BODY + more - body.len())).as_bytes());
    for (packed, status) in [(padded(0), 200), (padded(1), 413)] {
        let answer = Client::over(target.connect(Way::Tcp)).post(INFER, &[("content-encoding", "gzip")], &packed);
        assert_eq!(answer.status, status, "{answer:?}");
    }
    target.serves();
}

#[test]
fn strings_without_number_are_refused_before_a_runtime_gets_them() {
    let target = Target::with(TestRoot::new().models(&["identity_string", "identity_fp32"]), &[]);
    let before = target.rss_kb();
    let many = 20_000_000;
    let input = format!(r#"{{"inputs":[{{"name":"IN","datatype":"BYTES","shape":[1,{many}],"#);
    let strings = format!(r#"{input}"data":[{}""]}}]}}"#, r#""","#.repeat(many - 1));
    let packed = gzip(strings.as_bytes());
    drop(strings);
    let url = "/v2/models/identity_string/infer";
    let answer = Client::over(target.connect(Way::Tcp)).post(url, &[("content-encoding", "gzip")], &packed);
    assert!(answer.status == 400 && answer.error().contains("strings"), "{answer:?}");
    let size = 4 * (12 << 20);
    let head = format!(
        r#"{{"inputs":[{{"name":"IN","datatype":"BYTES","shape":[1,{}],"parameters":{{"binary_data_size":{size}}}}}]}}"#,
        size / 4
    );
    let binary = [head.as_bytes(), &vec![0; size]].concat();
    let length = head.len().to_string();
    let headers = [("inference-header-content-length", length.as_str())];
    let answer = Client::over(target.connect(Way::Tcp)).post(url, &headers, &binary);
    assert!(answer.status == 400 && answer.error().contains("strings"), "{answer:?}");
    let statistics = target.daemon.client().get("/v2/models/identity_string/stats").json();
    assert_eq!(statistics["model_stats"][0]["execution_count"], 0, "{statistics}");
    let peak = target.peak_kb();
    assert!(peak < before + ROOM_KB, "{before} kB before, {peak} kB at most");
    target.serves();
}

#[test]
fn what_is_made_of_small_requests_stays_within_the_memory_for_all_of_them() {
    let limit = 32_000_000_u32;
    let settings = [format!("http.max_memory_bytes={limit}"), "http.max_body_bytes=16000000".to_owned()];
    let target = Target::start(&settings.each_ref().map(String::as_str));
    let before = target.rss_kb();
    let mut most_held = 0.0_f64;
    // Each of the first is too much for the box by itself; some of the others are answered.
    for (elements, callers) in [(7_500_000, 4), (1_000_000, 16)] {
        let body = gzip(tensor(elements).as_bytes());
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let ask = || {
                let mut client = Client::over(target.connect(Way::Tcp));
                client.post(INFER, &[("content-encoding", "gzip")], &body).status
            };
            let asking: Vec<_> = (0..callers).map(|_| scope.spawn(ask)).collect();
            while !asking.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                most_held = most_held.max(target.held());
            }
            asking.into_iter().map(|asking| asking.join().unwrap()).collect()
        });
        assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
        assert_eq!(statuses.contains(&200), elements == 1_000_000, "{statuses:?}");
    }
    assert!(most_held > 0.0 && most_held <= f64::from(limit), "{most_held} bytes were held at once");
    let peak = target.peak_kb();
    // A runtime makes its own copies, and an allocator keeps some memory.
    assert!(peak < before + 3 * u64::from(limit) / 1000, "{before} kB before, {peak} kB at most");
    target.serves();
}

#[test]
fn json_without_end_or_bottom_is_refused() {
    let target = Target::start(&[]);
    let deep = |open: &str| open.repeat(1_000_000);
    let inputs =
        |data: &str| format!(r#"{{"inputs":[{{"name":"IN","datatype":"FP32","shape":[1,1],"data":{data}}}]}}"#);
    let zeros = format!("[{}0]", "0,".repeat((64 << 19) - 100));
    let bombs = [
        deep("["),
        deep("{\"a\":"),
        inputs(&deep("[")),
        inputs(&format!("{}{}", deep("["), deep("]"))),
        format!("{{\"parameters\":{}", deep("{\"a\":")),
        format!("{{\"id\":\"{}", deep("\\u0000")),
        inputs(&zeros),
        inputs(&format!("[{}]", "9".repeat(10 << 20))),
        inputs("[1e999999999999999999999]"),
        r#"{"inputs":[{"name":"IN","datatype":"FP32","shape":[9223372036854775807,9223372036854775807],"data":[1]}]}"#
            .into(),
        r#"{"inputs":[{"name":"IN","datatype":"FP32","shape":[-1,-1],"data":[]}]}"#.into(),
    ];
    for (index, bomb) in bombs.iter().enumerate() {
        let answer = Client::over(target.connect(WAYS[index % WAYS.len()])).post(INFER, &[], bomb.as_bytes());
        assert_eq!(answer.status, 400, "{index}: {answer:?}");
    }
    target.serves();
}

#[test]
fn a_picture_that_says_it_is_huge_is_refused_before_anything_is_made_for_it() {
    let target = Target::with(TestRoot::new().models(&["efficientnet_lite0", "identity_fp32"]), &[]);
    let (before, reserved_before) = (target.rss_kb(), target.reserved_kb());
    for way in WAYS {
        for (kind, picture) in [("image/png", png()), ("image/jpeg", jpeg()), ("image/webp", webp())] {
            let mut client = Client::over(target.connect(way));
            let answer = client.post("/v2/models/efficientnet_lite0/infer", &[("content-type", kind)], &picture);
            assert!(answer.status == 400 && answer.error().contains("pixels"), "{answer:?}");
        }
    }
    let peak = target.peak_kb();
    assert!(peak < before + (50 << 10), "{before} kB before, {peak} kB at most");
    // Memory that is asked for and not touched counts there; the smallest of the pictures would be a gigabyte.
    let reserved = target.reserved_kb();
    assert!(reserved < reserved_before + (700 << 10), "{reserved_before} kB reserved before, {reserved} kB at most");
    target.serves();
}
