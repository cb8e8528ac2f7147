//! Audit logs for tests: written by the log engine itself, copied as the platform has them, and attacked.

use std::path::{Path, PathBuf};

use ledge::audit::key::AuditKey;
use ledge::audit::layout::{changed, log_folder};
use ledge::audit::local::LocalAuditLog;
use ledge::audit::log::AuditLog;
use ledge::audit::record::{Actor, AuditRecord, Timestamp, VERSION};
use ledge::audit_event::AuditEvent;
use ledge::audit_event::tag::TagKey;
use ledge::names::DeviceName;
use ledge::principal::Principal;
use tempfile::TempDir;

use crate::daemon::{TestRoot, copy, write};

/// The time of the first record, in milliseconds since the Unix epoch; each next one is a second later.
pub const BEGIN_MS: u64 = 1_795_000_000_000;

/// A box that only writes its audit log.
pub struct AuditBox {
    pub root: TestRoot,
    pub key: AuditKey,
    log: AuditLog,
}

fn device() -> DeviceName {
    "box-1".parse().unwrap()
}

impl AuditBox {
    /// A box without records.
    pub fn new() -> Self {
        let root = TestRoot::new().set("device.id=\"box-1\"");
        let audit = root.folder.path().join("audit");
        std::fs::create_dir(&audit).unwrap();
        let (key, _) = AuditKey::load_or_create(&audit, &device(), &ledge::identity::sealing::Sealer::none()).unwrap();
        let log = AuditLog::open(&audit, &device(), &key).unwrap().log;
        Self { root, key, log }
    }

    /// A box with as many records under a signed head.
    pub fn with(count: u64) -> Self {
        let mut written = Self::new();
        written.append(count);
        written.sign();
        written
    }

    /// Another box that has the same key, as one that was set up from a copy of its disk.
    pub fn twin(&self) -> Self {
        let root = TestRoot::new();
        let audit = root.folder.path().join("audit");
        write(&audit.join("key"), &std::fs::read(self.audit().join("key")).unwrap());
        let (key, _) = AuditKey::load_or_create(&audit, &device(), &ledge::identity::sealing::Sealer::none()).unwrap();
        let log = AuditLog::open(&audit, &device(), &key).unwrap().log;
        Self { root, key, log }
    }

    pub fn audit(&self) -> PathBuf {
        self.root.folder.path().join("audit")
    }

    pub fn folder(&self) -> PathBuf {
        log_folder(&self.audit(), self.log.generation())
    }

    /// Writes records of little interest.
    pub fn append(&mut self, count: u64) {
        for _ in 0..count {
            self.write(&Principal::Local, None, AuditEvent::Stopped);
        }
    }

    /// Writes a record.
    pub fn write(&mut self, who: &Principal, key: Option<&TagKey>, event: AuditEvent) {
        let seq = self.log.size();
        let (actor, ts) = (Actor::of(who, key), Timestamp(BEGIN_MS + 1000 * seq));
        self.log.append(&AuditRecord { v: VERSION, seq, ts, actor, event }.to_line()).unwrap();
        self.log.commit().unwrap();
    }

    /// Writes records of this moment, in milliseconds since the Unix epoch, by the local caller or another one.
    pub fn write_all(&mut self, events: Vec<(u64, Principal, AuditEvent)>, key: Option<&TagKey>) {
        for (at_ms, who, event) in events {
            let (seq, actor) = (self.log.size(), Actor::of(&who, key));
            let record = AuditRecord { v: VERSION, seq, ts: Timestamp(at_ms), actor, event };
            self.log.append(&record.to_line()).unwrap();
        }
        self.log.commit().unwrap();
    }

    pub fn sign(&mut self) -> Vec<u8> {
        self.log.sign(&self.key).unwrap().note.clone()
    }

    /// The log as the platform has it.
    pub fn copy_to(&self, to: &Path) {
        let log = LocalAuditLog::open(&self.folder());
        for tile in changed(0, self.log.checkpoint().unwrap().size) {
            write(&to.join(tile.path()), &log.tile(tile).unwrap().unwrap());
        }
        write(&to.join("checkpoint"), &log.checkpoint().unwrap().unwrap());
    }
}

/// A changed copy of a log.
pub struct Attack {
    pub name: &'static str,
    pub folder: PathBuf,
    /// The exit code of `ledge audit verify` with an earlier checkpoint.
    pub exit: i32,
}

/// A log, an earlier checkpoint of it, and what can be done to a copy of it.
pub struct Attacked {
    pub written: AuditBox,
    pub folder: TempDir,
    /// The log as it is.
    pub whole: PathBuf,
    /// An earlier checkpoint of it.
    pub earlier: PathBuf,
    /// The changed copies of it.
    pub attacks: Vec<Attack>,
}

impl Attacked {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut written = AuditBox::with(700);
        written.copy_to(&at("cut-tail"));
        written.append(100);
        let earlier = written.sign();
        write(&at("earlier"), &earlier);
        written.append(200);
        written.sign();
        written.copy_to(&at("whole"));

        for name in ["flipped-bit", "rewritten-history", "forged-signature", "gap"] {
            copy(&at("whole"), &at(name));
        }
        let bundle = at("flipped-bit").join("tile/entries/001");
        let mut bytes = std::fs::read(&bundle).unwrap();
        // A digit of a time: the record stays one.
        let digit = bytes.windows(2).position(|pair| pair == b"Z\"").unwrap() - 1;
        bytes[digit] ^= 1;
        write(&bundle, &bytes);
        std::fs::remove_file(at("gap").join("tile/entries/002")).unwrap();

        let rewrite = |mut other: AuditBox| {
            other.append(50);
            other.write(&Principal::Local, None, AuditEvent::TrustReset);
            other.append(949);
            other.sign();
            other
        };
        let twin = rewrite(written.twin());
        twin.copy_to(&at("forked-head"));
        twin.copy_to(&at("rewritten-history"));
        write(&at("rewritten-history/checkpoint"), &std::fs::read(at("whole/checkpoint")).unwrap());
        rewrite(AuditBox::new()).copy_to(&at("forged-signature"));

        let attack = |name, exit| Attack { name, folder: at(name), exit };
        let attacks = vec![
            attack("flipped-bit", 5),
            attack("cut-tail", 5),
            attack("rewritten-history", 5),
            attack("forged-signature", 5),
            attack("forked-head", 4),
            attack("gap", 3),
        ];
        let (whole, earlier) = (at("whole"), at("earlier"));
        Self { written, folder, whole, earlier, attacks }
    }
}
