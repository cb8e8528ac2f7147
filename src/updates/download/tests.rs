use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::digest::{SHA256, digest};
use ledge_egress::{Egress, EgressConfig};
use ledge_service::audit_event::AuditSink;
use proptest::prelude::*;

use super::*;
use crate::config::RepositoryAddress;
use crate::source;
use crate::state::RollbackCause;

const KEEP_FETCHING: ControlFlow<()> = ControlFlow::Continue(());

/// The behaviour of a server on a request for the bytes from the second argument on; the first counts requests.
type Script = dyn Fn(usize, u64, &mut AnswerWriter) + Send + Sync;

/// An answer that is being written. Errors do not matter: the box may have hung up.
struct AnswerWriter(TcpStream);

impl AnswerWriter {
    fn head(&mut self, status: &str, headers: &str) {
        let _ = write!(self.0, "HTTP/1.1 {status}\r\n{headers}\r\n");
    }

    fn put(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    /// Promises all of `content` from `from` on, and sends `length` bytes of it.
    fn part(&mut self, content: &[u8], from: u64, length: usize) {
        let (total, start) = (content.len(), usize::try_from(from).unwrap());
        let left = &content[start..];
        let range = format!("Content-Range: bytes {from}-{}/{total}\r\nContent-Length: {}\r\n", total - 1, left.len());
        self.head("206 Partial Content", &range);
        self.put(&left[..length.min(left.len())]);
    }

    /// Promises all of `content`, as a server without ranges, and sends `length` bytes of it.
    fn whole(&mut self, content: &[u8], length: usize) {
        self.head("200 OK", &format!("Content-Length: {}\r\n", content.len()));
        self.put(&content[..length.min(content.len())]);
    }

    /// Answers as a correct server.
    fn good(&mut self, content: &[u8], from: u64) {
        if from == 0 { self.whole(content, content.len()) } else { self.part(content, from, content.len()) }
    }

    fn hold(&mut self) {
        let _ = self.0.read(&mut [0]);
    }
}

/// A server, a store, and a file that was signed.
struct Scene {
    folder: tempfile::TempDir,
    store: UpdateStore,
    source: RepositorySource,
    target: TufTarget,
    limits: DownloadLimits,
    /// The first byte of each request.
    asked: Arc<Mutex<Vec<u64>>>,
    told: AtomicU64,
    /// Bytes that were thrown away.
    wasted: AtomicU64,
}

impl Scene {
    fn new(signed: &[u8], script: impl Fn(usize, u64, &mut AnswerWriter) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: RepositoryAddress = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, script): (_, Arc<Script>) = (asked.clone(), Arc::new(script));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, script) = (log.clone(), script.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &log, &*script));
            }
        });
        let egress = Egress::new(&EgressConfig::default(), AuditSink::to_nowhere());
        let client = source::client(&address, &egress, None, || unreachable!("there is no TLS"));
        let folder = tempfile::tempdir().unwrap();
        Self {
            store: UpdateStore::open(&folder.path().join("updates")).unwrap(),
            folder,
            source: RepositorySource::new(&address, client),
            target: target(signed),
            limits: DownloadLimits {
                max_bytes_per_s: 0,
                min_free_bytes: 0,
                stall: Duration::from_secs(20),
                min_bytes_per_s: 0,
            },
            asked,
            told: AtomicU64::new(0),
            wasted: AtomicU64::new(0),
        }
    }

    async fn fetch_while(&self, mut wanted: impl FnMut(u64) -> ControlFlow<()>) -> Result<(), DownloadError> {
        let progress = |bytes| {
            self.told.fetch_add(bytes, Ordering::Relaxed);
            wanted(bytes)
        };
        fetch(&self.store, &self.source, &self.target, &self.limits, progress).await.map_err(|failed| {
            self.wasted.fetch_add(failed.wasted, Ordering::Relaxed);
            failed.error
        })
    }

    async fn fetch(&self) -> Result<(), DownloadError> {
        self.fetch_while(|_| KEEP_FETCHING).await
    }

    fn asked(&self) -> Vec<u64> {
        self.asked.lock().unwrap().clone()
    }

    fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    fn wasted(&self) -> u64 {
        self.wasted.load(Ordering::Relaxed)
    }

    fn path(&self, suffix: &str) -> std::path::PathBuf {
        self.folder.path().join(format!("updates/blobs/{}{suffix}", self.target.sha256))
    }

    fn part_length(&self) -> u64 {
        std::fs::metadata(self.path(".part")).map_or(0, |facts| facts.len())
    }

    /// Asserts that the signed file is here, and nothing else.
    fn assert_here(&self, content: &[u8]) {
        assert!(std::fs::read(self.path("")).unwrap() == content);
        let left: Vec<_> = std::fs::read_dir(self.folder.path().join("updates/blobs")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<u64>>, script: &Script) {
    let (mut wire, mut head) = (AnswerWriter(stream), Vec::new());
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if wire.0.read(&mut byte).unwrap_or(0) == 0 {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(!head.contains("if-range"), "the hash decides, and nothing else");
    let range = head.lines().find_map(|line| line.strip_prefix("range: bytes=")?.strip_suffix('-')?.parse().ok());
    let from = range.unwrap_or(0);
    let number = {
        let mut log = log.lock().unwrap();
        log.push(from);
        log.len() - 1
    };
    script(number, from, &mut wire);
}

fn target(content: &[u8]) -> TufTarget {
    let digits: Vec<_> = digest(&SHA256, content).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let sha256 = digits.concat();
    let path = "models/minilm/2/model.onnx".to_owned();
    let location = format!("models/minilm/2/{sha256}.model.onnx");
    TufTarget { path, length: content.len() as u64, sha256, custom: None, location }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect()
}

#[tokio::test]
async fn a_file_is_fetched_once() {
    let file = content(1_300_000);
    let served = file.clone();
    let scene = Scene::new(&file, move |_, from, wire| wire.good(&served, from));
    scene.fetch().await.unwrap();
    scene.assert_here(&file);
    scene.fetch().await.unwrap();
    assert_eq!((scene.asked(), scene.told()), (vec![0], 1_300_000));
}

#[tokio::test]
async fn an_empty_file_needs_no_request() {
    let scene = Scene::new(b"", |_, _, _| {});
    scene.fetch().await.unwrap();
    scene.assert_here(b"");
    assert_eq!(scene.asked(), [0; 0]);
}

#[tokio::test]
async fn a_transfer_that_broke_off_goes_on_with_the_next_byte() {
    let file = content(1_300_000);
    let served = file.clone();
    let scene = Scene::new(&file, move |number, from, wire| match number {
        0 => wire.whole(&served, 700_001),
        1 => wire.part(&served, from, 1),
        _ => wire.good(&served, from),
    });
    for expected in [700_001, 700_002] {
        let error = scene.fetch().await.unwrap_err();
        assert!(error.cause() == RollbackCause::Download, "{error}");
        assert_eq!(scene.part_length(), expected);
    }
    scene.fetch().await.unwrap();
    scene.assert_here(&file);
    assert_eq!((scene.asked(), scene.told()), (vec![0, 700_001, 700_002], 1_300_000));
}

#[tokio::test]
async fn a_server_without_ranges_takes_nothing_away() {
    let file = content(1_300_000);
    let served = file.clone();
    let lengths = [700_000, 100, 800_000, 1_300_000];
    let scene = Scene::new(&file, move |number, _, wire| wire.whole(&served, lengths[number]));
    for expected in [700_000, 700_000, 800_000] {
        scene.fetch().await.unwrap_err();
        assert_eq!(scene.part_length(), expected);
    }
    scene.fetch().await.unwrap();
    scene.assert_here(&file);
    assert_eq!(scene.told(), lengths.iter().sum::<usize>() as u64);
    // Bytes that came again, up to the attempt that succeeded.
    assert_eq!(scene.wasted(), 100 + 700_000);
}

#[tokio::test]
async fn a_file_in_slices_is_asked_for_to_its_end() {
    let file = content(1_000);
    let served = file.clone();
    let scene = Scene::new(&file, move |_, from, wire| {
        if from == 0 {
            return wire.whole(&served, 400);
        }
        let (start, end) = (usize::try_from(from).unwrap(), (from + 250).min(1_000));
        wire.head(
            "206 Partial Content",
            &format!("Content-Range: bytes {from}-{}/1000\r\nContent-Length: {}\r\n", end - 1, end - from),
        );
        wire.put(&served[start..usize::try_from(end).unwrap()]);
    });
    scene.fetch().await.unwrap_err();
    scene.fetch().await.unwrap();
    scene.assert_here(&file);
    assert_eq!(scene.asked(), [0, 400, 650, 900]);
}

#[tokio::test]
async fn a_range_that_was_not_asked_for_is_not_stored() {
    let file = content(1_000);
    for start in [1, 399, 401] {
        let served = file.clone();
        let scene = Scene::new(&file, move |number, from, wire| match number {
            0 => wire.whole(&served, 400),
            1 => wire.part(&served, start, 1_000),
            _ => wire.good(&served, from),
        });
        scene.fetch().await.unwrap_err();
        scene.fetch().await.unwrap_err();
        assert_eq!(scene.part_length(), 400);
        scene.fetch().await.unwrap();
        scene.assert_here(&file);
    }
}

#[tokio::test]
async fn what_is_not_what_was_signed_is_fetched_once_and_never_taken() {
    let file = content(1_300_000);
    let mut served = file.clone();
    served[1_000_000] ^= 1;
    let scene = Scene::new(&file, move |_, from, wire| wire.good(&served, from));
    let error = scene.fetch().await.unwrap_err();
    assert!(matches!(error, DownloadError::Content { .. }), "{error}");
    assert_eq!(error.cause(), RollbackCause::Download);
    assert!(!scene.store.has(&scene.target.sha256) && scene.part_length() == 0);
    // A server with a wrong file from the first byte on is not asked for all of it again at once.
    assert_eq!((scene.asked(), scene.wasted()), (vec![0], 1_300_000));
}

#[tokio::test]
async fn wrong_bytes_of_an_earlier_server_are_fetched_once_more() {
    let file = content(1_300_000);
    let (served, wrong) = (file.clone(), content(1_300_001)[1..].to_vec());
    let scene = Scene::new(&file, move |number, from, wire| match number {
        0 => wire.whole(&wrong, 700_000),
        _ => wire.good(&served, from),
    });
    scene.fetch().await.unwrap_err();
    scene.fetch().await.unwrap();
    scene.assert_here(&file);
    assert_eq!(scene.asked(), [0, 700_000, 0]);
}

#[tokio::test]
async fn endless_data_ends_with_what_was_signed() {
    let file = content(100_000);
    let served = file.clone();
    let scene = Scene::new(&file, move |_, _, wire| {
        wire.head("200 OK", "Transfer-Encoding: chunked\r\n");
        wire.put(format!("{:x}\r\n", served.len()).as_bytes());
        wire.put(&served);
        wire.put(b"\r\n");
        while wire.put(b"400\r\n") && wire.put(&[0; 1024]) && wire.put(b"\r\n") {}
    });
    let error = scene.fetch().await.unwrap_err();
    assert!(matches!(error, DownloadError::Content { .. }), "{error}");
    assert!(scene.part_length() == 0 && scene.told() < 2_000_000, "{} bytes were read", scene.told());
}

#[tokio::test]
async fn a_file_of_unknown_length_is_taken_when_it_ends_where_it_should() {
    let file = content(100_000);
    let served = file.clone();
    let scene = Scene::new(&file, move |_, _, wire| {
        wire.head("200 OK", "Transfer-Encoding: chunked\r\n");
        for bytes in served.chunks(1_000) {
            wire.put(b"3e8\r\n");
            wire.put(bytes);
            wire.put(b"\r\n");
        }
        wire.put(b"0\r\n\r\n");
    });
    scene.fetch().await.unwrap();
    scene.assert_here(&file);
}

#[tokio::test]
async fn an_answer_of_another_length_is_not_even_begun() {
    let file = content(1_000);
    for length in [999, 1_001, 1_000_000_000_000_u64] {
        let scene = Scene::new(&file, move |_, _, wire| {
            wire.head("200 OK", &format!("Content-Length: {length}\r\n"));
            wire.put(&[0; 500]);
            wire.hold();
        });
        let error = scene.fetch().await.unwrap_err();
        assert!(matches!(error, DownloadError::Length { signed: 1_000, .. }), "{error}");
        assert_eq!((scene.part_length(), scene.told()), (0, 0));
    }
}

#[tokio::test]
async fn a_server_that_has_too_much_to_do_says_when_it_wants_to_be_asked_again() {
    let file = content(1_000);
    let busy = "Content-Length: 0\r\nRetry-After: 7\r\n";
    let scene = Scene::new(&file, move |_, _, wire| wire.head("503 Service Unavailable", busy));
    let error = scene.fetch().await.unwrap_err();
    assert_eq!((error.retry_after(), scene.wasted()), (Some(Duration::from_secs(7)), 0));
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up_and_nothing_is_lost() {
    let file = content(1_000);
    let served = file.clone();
    let mut scene = Scene::new(&file, move |number, from, wire| match number {
        0 => wire.hold(),
        1 => {
            wire.whole(&served, 400);
            wire.hold();
        }
        _ => wire.good(&served, from),
    });
    scene.limits.stall = Duration::from_millis(300);
    for expected in [0, 400] {
        let error = scene.fetch().await.unwrap_err();
        assert!(matches!(error, DownloadError::Stalled { .. }), "{error}");
        assert_eq!(scene.part_length(), expected);
    }
    scene.fetch().await.unwrap();
    scene.assert_here(&file);
    assert_eq!(scene.asked(), [0, 0, 400]);
}

#[tokio::test]
async fn a_cancelled_transfer_ends_at_once_and_loses_nothing() {
    let file = content(1_000);
    let served = file.clone();
    let scene = Scene::new(&file, move |number, from, wire| {
        if number < 2 {
            wire.whole(&served, 400);
            wire.hold();
        } else {
            wire.good(&served, from);
        }
    });
    let error = scene.fetch_while(|_| ControlFlow::Break(())).await.unwrap_err();
    assert!(matches!(error, DownloadError::Cancelled), "{error}");
    let here = scene.part_length();
    assert!(here > 0);
    // While the server is silent, too.
    let error =
        scene.fetch_while(|bytes| if bytes == 0 { ControlFlow::Break(()) } else { KEEP_FETCHING }).await.unwrap_err();
    assert!(matches!(error, DownloadError::Cancelled), "{error}");
    scene.fetch().await.unwrap();
    scene.assert_here(&file);
}

#[tokio::test]
async fn a_dropped_transfer_leaves_a_part_that_the_next_one_gets() {
    let file = content(3_000_000);
    let served = file.clone();
    let scene = Scene::new(&file, move |_, from, wire| wire.good(&served, from));
    for until in [1, 1_000_000, 2_000_000] {
        let here = tokio::sync::Notify::new();
        tokio::select! {
            biased;
            () = here.notified() => {}
            _ = scene.fetch_while(|_| {
                if scene.told() >= until {
                    here.notify_one();
                }
                KEEP_FETCHING
            }) => {}
        }
    }
    scene.fetch().await.unwrap();
    scene.assert_here(&file);
}

#[tokio::test]
async fn without_room_nobody_is_asked() {
    let file = content(1_000);
    let mut scene = Scene::new(&file, |_, _, _| {});
    scene.limits.min_free_bytes = u64::MAX - 1_000;
    let error = scene.fetch().await.unwrap_err();
    assert!(matches!(error, DownloadError::Room { needed: u64::MAX, .. }), "{error}");
    assert_eq!((error.cause(), scene.asked().len()), (RollbackCause::Disk, 0));
}

#[tokio::test]
async fn a_download_keeps_to_its_bandwidth() {
    let file = content(60_000);
    let served = file.clone();
    let mut scene = Scene::new(&file, move |_, from, wire| wire.good(&served, from));
    scene.limits.max_bytes_per_s = 100_000;
    let started = Instant::now();
    scene.fetch().await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(340), "{:?}", started.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_breaks_off_no_byte_comes_twice_and_the_file_is_right(
        length in 1..1_500_000_usize,
        cuts in prop::collection::vec((0..700_000_usize, any::<bool>()), 0..6),
    ) {
        let file = content(length);
        let served = file.clone();
        let plan = cuts.clone();
        let scene = Scene::new(&file, move |number, from, wire| match plan.get(number) {
            Some((cut, _)) if from == 0 => wire.whole(&served, *cut),
            Some((cut, true)) => wire.part(&served, from, *cut),
            Some((_, false)) => wire.head("500 Internal Server Error", "Content-Length: 0\r\n"),
            None => wire.good(&served, from),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for _ in 0..=cuts.len() {
            if runtime.block_on(scene.fetch()).is_ok() {
                break;
            }
        }
        scene.assert_here(&file);
        prop_assert_eq!((scene.told(), scene.wasted()), (length as u64, 0));
    }
}
