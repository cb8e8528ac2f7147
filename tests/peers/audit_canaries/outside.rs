//! Everything outside of a box that it can send to, each behind a recorder; and the box itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::recorder::Recorder;
use super::secrets::Canaries;
use crate::audit_sync::Server;
use crate::broker::{Broker, free_port};
use crate::certificates::Authority;
use crate::daemon::{TestRoot, model_folder, write};
use crate::platform::{Platform, SHAPES};
use crate::tools::path_of;

/// The feature views of the box.
const VIEWS: &str = r#"
[[entity]]
name = "wine"
join_key = "wine_id"
value_type = "String"

[[feature_view]]
name = "lab"
entities = ["wine"]
schema = [{ name = "measured", dtype = "Array(Float32)" }, { name = "grower", dtype = "String", optional = true }]
source = { name = "lab_push", timestamp_field = "event_timestamp" }
"#;

const WINE: &str = "max_batch_size = 64\n[[input]]\nname = \"features\"\nfeatures = [\"lab:measured\"]\n";

/// A binding that pushes, one that pushes and scores, and one that answers with what went in.
const BINDINGS: &str = r#"
[[mqtt.bindings]]
topic = "cellar/+/lab"
feature_view = "lab"
entities = { wine_id = "{1}" }
features = { measured = "$.all", grower = "$.grower" }

[[mqtt.bindings]]
topic = "press/+/lab"
push_source = "lab_push"
entities = { wine_id = "$.wine" }
model = "wine_mlp"
publish = "cultivar/{1}"

[[mqtt.bindings]]
topic = "notes/+/said"
model = "identity_string"
publish = "echo/{1}"
publish_errors = true
[mqtt.bindings.inputs]
IN = ["$.said"]
"#;

/// The servers.
pub struct Outside {
    pub authority: Authority,
    pub platform: Platform,
    pub broker: Broker,
    pub mqtt: Recorder,
    pub updates: Recorder,
    pub sync: Recorder,
    pub syslog: Recorder,
    pub otlp: Recorder,
    folder: TempDir,
    _nginx: Server,
}

impl Outside {
    pub fn new() -> Self {
        let (authority, platform, broker) = (Authority::new(), Platform::new(), Broker::new());
        platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
        platform.start("r-1", "models/shapes/1", &[]);
        let folder = tempfile::tempdir().unwrap();
        let (nginx, port) = nginx(folder.path(), &platform.repository());
        let recorder = |behind| Recorder::start(&authority, behind);
        Self {
            mqtt: recorder(Some(broker.port)),
            updates: recorder(Some(port)),
            sync: recorder(Some(port)),
            otlp: recorder(Some(port)),
            syslog: recorder(None),
            authority,
            platform,
            broker,
            folder,
            _nginx: nginx,
        }
    }

    /// All recorders, by their purpose for the box.
    pub fn recorders(&self) -> [(&'static str, &Recorder); 5] {
        [
            ("mqtt", &self.mqtt),
            ("updates", &self.updates),
            ("sync", &self.sync),
            ("syslog", &self.syslog),
            ("otlp", &self.otlp),
        ]
    }

    /// The number of reports sent.
    pub fn reports(&self) -> usize {
        let connections = self.mqtt.connections();
        connections
            .iter()
            .map(|connection| String::from_utf8_lossy(&connection.sent).matches("\"schema\":1").count())
            .sum()
    }

    /// The folder with the copy of the audit log.
    pub fn synced(&self) -> PathBuf {
        self.folder.path().join("audit/box-1")
    }

    /// A box that sends to all of them, with canaries in its secrets and in its owner's other files next to the models.
    pub fn enrol(&self, canaries: &mut Canaries) -> TestRoot {
        let address = |recorder: &Recorder, path: &str| format!("https://{}{path}", recorder.address());
        let models =
            ["add_sub", "identity_string", "identity_fp32", "identity_uint8", "efficientnet_lite0", "wine_mlp"];
        let root = TestRoot::new().models(&models).file("wine_mlp/model.toml", WINE).views(VIEWS);
        let root = self.platform.enrol(root, &address(&self.updates, "/"));
        let mut root = root
            // A failed check stays the last one until it was reported.
            .set("updates.poll_interval_s=86400")
            .set("audit.inference=\"calls\"")
            .set(&format!("mqtt.broker=\"mqtts://{}\"", self.mqtt.address()))
            .set(&format!("mqtt.user={:?}", canaries.word("mqtt connect: user")))
            .set("mqtt.password_file=\"password\"")
            .set("mqtt.report_interval_s=5")
            .set(&format!("audit.sync.url={:?}", address(&self.sync, "/audit")))
            .set("audit.sync.interval_s=1")
            .set(&format!("audit.syslog.to={:?}", self.syslog.address()))
            .set(&format!("audit.otlp.url={:?}", address(&self.otlp, "/v1/logs")))
            .set("audit.otlp.token_file=\"token\"");
        let file = |name: &str, content: &str| write(&root.folder.path().join(name), content.as_bytes());
        file("password", &canaries.word("mqtt connect: password"));
        file("token", &canaries.word("otlp token"));
        file("ca.pem", self.authority.pem());
        for (name, section) in [
            ("mqtt", "mqtt"),
            ("updates", "updates"),
            ("sync", "audit.sync"),
            ("syslog", "audit.syslog"),
            ("otlp", "audit.otlp"),
        ] {
            let identity = self.authority.issue(&canaries.word(&format!("certificate: {name}")));
            let at = root.folder.path();
            write(&at.join(format!("{name}.pem")), identity.certificate.as_bytes());
            write(&at.join(format!("{name}.key")), identity.key.as_bytes());
            root = root
                .set(&format!("{section}.tls.ca_file=\"ca.pem\""))
                .set(&format!("{section}.tls.certificate_file=\"{name}.pem\""))
                .set(&format!("{section}.tls.key_file=\"{name}.key\""));
        }
        self.owned(root, canaries)
    }

    /// The configuration file, and files of the model repository that do not belong to a model.
    fn owned(&self, root: TestRoot, canaries: &mut Canaries) -> TestRoot {
        let mut text =
            format!("[mqtt]\nresponse_topics = [\"answers/#\", \"{}/#\"]\n", canaries.word("setting: a topic"));
        let allowed = |recorder: &Recorder, contents: &str| {
            format!("[[egress.allow]]\nhost = \"{}\"\nregion = \"eu\"\nsend = [{contents}]\n", recorder.address())
        };
        text += &allowed(&self.mqtt, "\"answers\", \"presence\", \"reports\"");
        text += &allowed(&self.updates, "\"requests\"");
        for recorder in [&self.sync, &self.syslog, &self.otlp] {
            text += &allowed(recorder, "\"audit\"");
        }
        write(&root.folder.path().join("ledge.toml"), (text + BINDINGS).as_bytes());
        let described = format!("description = \"{}\"\n", canaries.word("owner: the description of a model"));
        let beside = format!("identity_fp32/{}.txt", canaries.word("owner: the name of a file"));
        let content = canaries.bytes("owner: the content of a file");
        root.file("identity_string/model.toml", described).file(&beside, content)
    }
}

/// One web server for downloads and for uploads over HTTP.
fn nginx(folder: &Path, repository: &Path) -> (Server, u16) {
    let (port, at) = (free_port(), folder.display());
    std::fs::create_dir_all(folder.join("audit")).unwrap();
    let text = format!(
        "daemon off;\nmaster_process off;\npid {at}/pid;\nerror_log {at}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\n\
         client_max_body_size 0;\nclient_body_temp_path {at};\nproxy_temp_path {at};\nfastcgi_temp_path {at};\n\
         uwsgi_temp_path {at};\nscgi_temp_path {at};\nserver {{\nlisten 127.0.0.1:{port};\n\
         location / {{ root {}; }}\n\
         location /audit/ {{ root {at}; dav_methods PUT; create_full_put_path on; }}\n\
         location = /v1/logs {{ default_type application/json; return 200 '{{}}'; }}\n}}\n}}\n",
        repository.display()
    );
    write(&folder.join("nginx.conf"), text.as_bytes());
    let mut command = Command::new(path_of("nginx"));
    command.arg("-c").arg(folder.join("nginx.conf")).arg("-e").arg(folder.join("error.log"));
    (Server::start(&mut command, port), port)
}
