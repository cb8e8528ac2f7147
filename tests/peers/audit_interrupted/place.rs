//! `Place`: where a box copies its audit log to, on a real server.

use std::collections::BTreeMap;
use std::process::Command;

use ledge::audit::key::SignedCheckpoint;
use ledge::audit::layout::{TilePath, changed, log_folder};
use ledge::audit::local::LocalAuditLog;
use tempfile::TempDir;

use crate::audit_kit::Kit;
use crate::audit_sync::{Server, files_below, moto, nginx, objects, start_nginx};
use crate::certificates::Authority;
use crate::daemon::{TestRoot, setup_root, write};
use crate::tools::run;

/// Makes the bucket, which keeps every version of an object.
const MAKE: &str = "s3.create_bucket(Bucket='fleet')\n\
                    s3.put_bucket_versioning(Bucket='fleet', VersioningConfiguration={'Status': 'Enabled'})\n";

/// Counts the versions of each object.
const COUNT: &str = "import collections\n\
                     pages = s3.get_paginator('list_object_versions').paginate(Bucket='fleet')\n\
                     found = [page.get('Versions', []) + page.get('DeleteMarkers', []) for page in pages]\n\
                     print(json.dumps(collections.Counter(item['Key'] for page in found for item in page)))\n";

/// The server, and what keeps its state.
pub enum Place {
    /// nginx of the documented configuration.
    WebDav {
        folder: TempDir,
        authority: Box<Authority>,
        port: u16,
        server: Option<Server>,
    },
    Bucket {
        server: Server,
    },
}

impl Place {
    /// A folder that is empty.
    pub fn web_dav() -> Self {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        let server = nginx(folder.path(), &authority);
        Self::WebDav { folder, authority: Box::new(authority), port: server.port, server: Some(server) }
    }

    /// A bucket that is empty.
    pub fn bucket() -> Self {
        let server = moto();
        boto3(server.port, MAKE);
        Self::Bucket { server }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        match self {
            Self::WebDav { port, .. } | Self::Bucket { server: Server { port, .. } } => *port,
        }
    }

    /// Has a box copy its log there, through `port`.
    pub fn enrol(&self, root: TestRoot, port: u16) -> TestRoot {
        let file = |name: &str, content: &str| write(&root.folder.path().join(name), content.as_bytes());
        match self {
            Self::WebDav { authority, .. } => {
                let identity = authority.issue("box-1");
                file("tls/ca.pem", authority.pem());
                file("tls/box.pem", &identity.certificate);
                file("tls/box.key", &identity.key);
                root.set(&format!("audit.sync.url=\"https://127.0.0.1:{port}/audit\""))
                    .set("audit.sync.tls.ca_file=\"tls/ca.pem\"")
                    .set("audit.sync.tls.certificate_file=\"tls/box.pem\"")
                    .set("audit.sync.tls.key_file=\"tls/box.key\"")
            }
            Self::Bucket { .. } => {
                file("id", "test\n");
                file("secret", "test\n");
                root.set("audit.sync.url=\"s3://fleet/boxes\"")
                    .set(&format!("audit.sync.endpoint=\"http://127.0.0.1:{port}\""))
                    .set("audit.sync.access_key_id_file=\"id\"")
                    .set("audit.sync.secret_access_key_file=\"secret\"")
            }
        }
    }

    /// Kills the server, where its state survives that.
    pub fn stop(&mut self) {
        if let Self::WebDav { server, .. } = self {
            *server = None;
        }
    }

    /// Starts it again.
    pub fn start(&mut self) {
        if let Self::WebDav { folder, port, server, .. } = self
            && server.is_none()
        {
            *server = Some(start_nginx(folder.path(), *port));
        }
    }

    /// Its files, below the folder of the box.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        match self {
            Self::WebDav { folder, .. } => files_below(&folder.path().join("boxes/audit/box-1")),
            Self::Bucket { server } => objects(server.port)
                .into_iter()
                .map(|(key, body)| (key.strip_prefix("boxes/box-1/").unwrap().to_owned(), body))
                .collect(),
        }
    }

    /// The number of files other than the checkpoint that were written more than once.
    pub fn replaced(&self) -> usize {
        let writes: BTreeMap<String, u64> = match self {
            Self::WebDav { folder, .. } => {
                let mut writes = BTreeMap::new();
                for line in std::fs::read_to_string(folder.path().join("access.log")).unwrap().lines() {
                    let words: Vec<&str> = line.split(' ').collect();
                    // 201: made; 204: replaced.
                    if words[5] == "\"PUT" && words[8].starts_with('2') {
                        *writes.entry(words[6].to_owned()).or_default() += 1;
                    }
                }
                writes
            }
            Self::Bucket { server } => serde_json::from_str(&boto3(server.port, COUNT)).unwrap(),
        };
        assert!(writes.keys().any(|path| path.contains("/tile/")), "{writes:?}");
        writes.iter().filter(|(path, count)| path.contains("/tile/") && **count > 1).count()
    }

    /// Every file there must equal that of the box, and no file of the head there must be missing. Returns the head.
    #[track_caller]
    pub fn assert_copied(&self, root: &TestRoot, key: &str) -> SignedCheckpoint {
        let (local, mut files) = (LocalAuditLog::open(&log_folder(&root.folder.path().join("audit"), 1)), self.files());
        let head = SignedCheckpoint::open(&files.remove("1/checkpoint").unwrap(), key).unwrap();
        for tile in changed(0, head.size) {
            assert!(files.contains_key(&format!("1/{}", tile.path())), "{} is missing", tile.path());
        }
        for (path, content) in files {
            let tile = path.strip_prefix("1/").and_then(TilePath::parse).unwrap_or_else(|| panic!("{path}"));
            assert!(local.tile(tile).unwrap() == Some(content), "{path} has other bytes than the box");
        }
        head
    }

    /// Verifies it as `ledge audit verify` and the platform's kit do, with a key of the box.
    #[track_caller]
    pub fn verify(&self, root: &TestRoot, key: &str) {
        let copied = tempfile::tempdir().unwrap();
        let mut verify = root.command(&["audit", "verify", "--key", key]);
        match self {
            Self::WebDav { port, .. } => {
                verify.arg(format!("https://127.0.0.1:{port}/audit/box-1"));
                for (option, file) in [("ca", "ca.pem"), ("certificate", "box.pem"), ("key", "box.key")] {
                    verify.arg(format!("--{option}-file")).arg(root.folder.path().join("tls").join(file));
                }
            }
            Self::Bucket { .. } => {
                for (path, content) in self.files() {
                    write(&copied.path().join(path), &content);
                }
                verify.arg(copied.path());
            }
        }
        assert!(run(&mut verify).contains("every record is the one that was signed"));
    }

    /// The log there must be whole to the platform's kit; how many records it has.
    #[track_caller]
    pub fn verify_with(&self, kit: &Kit, options: &[&str]) -> u64 {
        let source = self.source();
        let (status, told) = kit.verify(source.iter().map(String::as_str).chain(options.iter().copied()));
        let records = told.strip_prefix("box-1: whole, log 1, ").and_then(|rest| rest.split(' ').next());
        assert_eq!(status, 0, "{told}");
        records.and_then(|records| records.replace(',', "").parse().ok()).unwrap_or_else(|| panic!("{told}"))
    }

    fn source(&self) -> Vec<String> {
        match self {
            Self::WebDav { folder, .. } => vec![folder.path().join("boxes/audit").display().to_string()],
            Self::Bucket { server } => ["s3://fleet/boxes", "--endpoint", &format!("http://127.0.0.1:{}", server.port)]
                .map(str::to_owned)
                .into(),
        }
    }
}

fn boto3(port: u16, script: &str) -> String {
    let client = "import boto3, json, sys\n\
                  s3 = boto3.client('s3', endpoint_url=sys.argv[1], region_name='us-east-1', aws_access_key_id='test', aws_secret_access_key='test')\n";
    let mut python = Command::new(setup_root().join("platform/bin/python3"));
    run(python.arg("-c").arg(format!("{client}{script}")).arg(format!("http://127.0.0.1:{port}")))
}
