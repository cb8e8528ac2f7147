//! The configuration: a section for each part, defined by that part.
//!
//! `Config::load` reads it from all its sources and reports the mistakes of all; a `Config` is valid.

mod bindings;
mod cameras;
mod receivers;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ledge_accounts::config::{AccountsConfig, BudgetsConfig, ObjectivesConfig};
use ledge_alerts::config::AlertsConfig;
use ledge_audit::config::AuditConfig;
use ledge_base::config_path;
use ledge_base::telemetry::logging::LogConfig;
use ledge_base::toml_check::{ValueProblem, in_range};
use ledge_cameras::config::{CamerasConfig, HomeAssistantConfig};
use ledge_console::config::ConsoleConfig;
use ledge_drift::config::DriftConfig;
use ledge_egress::{ConfiguredDestination, EgressConfig, HostPort};
use ledge_features::config::FeaturesConfig;
use ledge_features::online::PushTarget;
use ledge_grpc::config::GrpcConfig;
use ledge_history::config::HistoryConfig;
use ledge_http::config::HttpConfig;
use ledge_http::document_intelligence::config::DocumentsConfig;
use ledge_http::openai::config::OpenAiConfig;
use ledge_http::vision::config::VisionConfig;
use ledge_identity::access::Permission;
use ledge_identity::access_config::AccessConfig;
use ledge_identity::device::DeviceConfig;
use ledge_identity::keys;
use ledge_identity::sealing::EncryptionConfig;
use ledge_inbox::config::InboxesConfig;
use ledge_jobs::config::JobsConfig;
use ledge_listener::address::{self, ListenAddress};
use ledge_listener::tls::TlsSource;
use ledge_listener::tls::config::ClientCertificates;
use ledge_membership::config::MembershipConfig;
use ledge_models::repository::config::RepositoryConfig;
use ledge_models::runtimes::RuntimesConfig;
use ledge_models::serving::config::{QuotaConfig, ResponseCacheConfig, ServingConfig};
use ledge_mqtt::bindings::BindingConfig;
use ledge_mqtt::config::MqttConfig;
use ledge_mqtt::topics::TopicFilter;
use ledge_part::section::ConfigSection;
use ledge_updates::catalogue::config::CatalogueConfig;
use ledge_updates::config::UpdatesConfig;
use ledge_updates::upgrade::config::UpgradesConfig;
use serde::{Deserialize, Serialize};

pub use sources::{ConfigCheckResult, ConfigSources, LoadedConfig, PlatformMetrics, ValueOrigin};

/// The configuration file of an installed package.
pub const PACKAGED_FILE: &str = "/etc/ledge/ledge.toml";

/// The root of an installed package. Relative paths in its configuration are below it.
pub const PACKAGED_ROOT: &str = "/var/lib/ledge";

/// Declares the struct of the configuration, and lists its sections. A part that opens itself needs only its line here.
macro_rules! configuration {
    ($(#[$about:meta])* pub struct Config { $($(#[$how:meta])* pub $name:ident: $section:ty,)* }) => {
        $(#[$about])*
        pub struct Config {
            $($(#[$how])* pub $name: $section,)*
        }

        impl Config {
            /// Every section, with its name.
            pub fn sections(&self) -> Vec<(&'static str, &dyn ConfigSection)> {
                vec![$((stringify!($name), &self.$name)),*]
            }

            fn sections_mut(&mut self) -> Vec<&mut dyn ConfigSection> {
                vec![$(&mut self.$name),*]
            }
        }
    };
}

configuration! {
/// All settings. `configs/ledge.toml` describes each key.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub http: HttpConfig,
    pub grpc: GrpcConfig,
    pub vision: VisionConfig,
    pub openai: OpenAiConfig,
    pub documents: DocumentsConfig,
    pub console: ConsoleConfig,
    pub history: HistoryConfig,
    pub access: AccessConfig,
    pub repository: RepositoryConfig,
    pub runtimes: RuntimesConfig,
    pub serving: ServingConfig,
    pub response_cache: ResponseCacheConfig,
    pub quota: QuotaConfig,
    pub drift: DriftConfig,
    pub features: FeaturesConfig,
    pub egress: EgressConfig,
    pub audit: AuditConfig,
    pub encryption: EncryptionConfig,
    pub log: LogConfig,
    pub device: DeviceConfig,
    pub mqtt: MqttConfig,
    #[serde(skip_serializing_if = "CamerasConfig::is_empty")]
    pub camera: CamerasConfig,
    pub home_assistant: HomeAssistantConfig,
    #[serde(skip_serializing_if = "AlertsConfig::is_empty")]
    pub alert: AlertsConfig,
    #[serde(skip_serializing_if = "InboxesConfig::is_empty")]
    pub inbox: InboxesConfig,
    pub accounts: AccountsConfig,
    #[serde(skip_serializing_if = "BudgetsConfig::is_empty")]
    pub budget: BudgetsConfig,
    #[serde(skip_serializing_if = "ObjectivesConfig::is_empty")]
    pub objective: ObjectivesConfig,
    pub jobs: JobsConfig,
    pub membership: MembershipConfig,
    pub updates: UpdatesConfig,
    pub upgrades: UpgradesConfig,
    pub catalogue: CatalogueConfig,
    pub state: StateConfig,
    pub retention: RetentionConfig,
    pub shutdown: ShutdownConfig,
    pub control: ControlConfig,
}
}

/// The section `[state]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StateConfig {
    /// The folder of the state that this box must keep, its name first of all.
    pub path: PathBuf,
}

impl ConfigSection for StateConfig {
    fn resolve(&mut self, root: &Path) {
        config_path::resolve(&mut self.path, root);
    }
}

/// The section `[retention]`: how long data is kept, by its purpose. Rows of features end by the ttl of their view, and
/// the keys of tags of the audit log by `audit.keep_tag_keys_days`. No picture of a camera is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// The days after which files in the folders of done and failed files of inboxes are removed; 0: never.
    #[serde(deserialize_with = "in_range::<0, 36_500, _, _>")]
    pub inbox_days: u64,
    /// The days after which figures of the history are removed. There is room for no more.
    #[serde(deserialize_with = "in_range::<1, 731, _, _>")]
    pub history_days: u64,
    /// The days after which a job that has ended is removed, with its result.
    #[serde(deserialize_with = "in_range::<1, 3_650, _, _>")]
    pub jobs_days: u64,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self { inbox_days: 0, history_days: 731, jobs_days: 7 }
    }
}

impl RetentionConfig {
    /// The moment before which files of inboxes have ended, in milliseconds since the Unix epoch; `None`: never.
    pub fn inbox_limit_ms(&self, now_ms: u64) -> Option<u64> {
        (self.inbox_days > 0).then(|| days_before(now_ms, self.inbox_days))
    }

    /// The moment before which figures of the history are removed, in milliseconds since the Unix epoch.
    pub fn history_limit_ms(&self, now_ms: u64) -> u64 {
        days_before(now_ms, self.history_days)
    }
}

fn days_before(now_ms: u64, days: u64) -> u64 {
    now_ms.saturating_sub(days.saturating_mul(86_400_000))
}

impl ConfigSection for RetentionConfig {}

impl ConfigSection for ShutdownConfig {}

impl ConfigSection for ControlConfig {}

impl Default for StateConfig {
    fn default() -> Self {
        Self { path: ".".into() }
    }
}

/// The section `[shutdown]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShutdownConfig {
    /// The longest time that calls in flight may take after the daemon was asked to stop, in milliseconds.
    #[serde(deserialize_with = "in_range::<0, 600_000, _, _>")]
    pub grace_ms: u64,
}

impl Default for ShutdownConfig {
    fn default() -> Self {
        Self { grace_ms: 10_000 }
    }
}

impl ShutdownConfig {
    /// [`Self::grace_ms`].
    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }
}

/// The section `[control]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControlConfig {
    /// The number of threads that handle connections and requests. A model that needs some 60 us may run on them.
    #[serde(deserialize_with = "in_range::<1, 16, _, _>")]
    pub threads: usize,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self { threads: 1 }
    }
}

impl Config {
    /// The defaults of an installed package, with the paths of the distribution.
    pub fn packaged() -> Self {
        let mut config = Self::default();
        address::resolve_sockets(&mut config.http.listen, Path::new("/run/ledge"));
        config.repository.packaged = "/usr/share/ledge/models".into();
        config.runtimes.dir = "/usr/lib/ledge/runtimes".into();
        config.features.views = "/etc/ledge/feature_views.d".into();
        config.updates.root_file = "/etc/ledge/root.json".into();
        config.upgrades.path = "/var/lib/ledge-upgrade".into();
        config.catalogue.root_file = "/etc/ledge/catalogue-root.json".into();
        config.catalogue.publisher_file = "/usr/share/ledge/publisher.toml".into();
        config.resolve(Path::new(PACKAGED_ROOT));
        config
    }

    /// The defaults below one folder.
    pub fn with_root(root: &Path) -> Self {
        let mut config = Self::default();
        config.resolve(root);
        config
    }

    /// The certificate of this box, and the addresses that show it.
    pub fn tls_source(&self) -> TlsSource {
        let listen = self.http.listen.iter().chain(&self.grpc.listen).cloned();
        TlsSource::new(&self.http.tls, listen.collect(), &self.state.path)
    }

    /// The topic on which Home Assistant says that it has started; `None` where nothing is announced to it.
    pub fn home_assistant_status(&self) -> Option<TopicFilter> {
        let has_entities = !self.camera.is_empty() || self.history.unusual_mqtt;
        (self.home_assistant.enable && has_entities).then(|| self.home_assistant.status_topic().parse().ok())?
    }

    /// The destinations to which this box connects only through a proxy, each with its proxy.
    pub fn behind_proxies(&self) -> BTreeMap<HostPort, HostPort> {
        ledge_egress::behind_proxies(&self.destinations())
    }

    /// The destinations that the sections name.
    pub fn destinations(&self) -> Vec<ConfiguredDestination> {
        let of_section = |(name, section): (&'static str, &dyn ConfigSection)| {
            section.destinations().into_iter().map(move |destination| destination.in_section(name))
        };
        self.sections().into_iter().flat_map(of_section).collect()
    }

    /// Makes every path relative to `root`.
    fn resolve(&mut self, root: &Path) {
        for section in self.sections_mut() {
            section.resolve(root);
        }
    }

    /// The mistakes in the group of this box and in the cameras of bindings.
    fn group_problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let DeviceConfig { id, group, .. } = &self.device;
        if group.is_some() && group == id {
            let problem = "is the name of this box, so every box of the group would answer its calls: give the group \
                           another name";
            problems.push(ValueProblem::new("device.group", problem));
        }
        for (index, binding) in self.mqtt.bindings.iter().enumerate() {
            if let Some(camera) = &binding.camera
                && !self.camera.iter().any(|known| known.name == *camera && known.url.is_none())
            {
                let problem = format!("{camera} is no [[camera]] without a url");
                problems.push(ValueProblem::new(format!("mqtt.bindings[{index}].camera"), problem));
            }
            if binding.shared && group.is_none() {
                let problem = "is for the boxes of a group: set device.group";
                problems.push(ValueProblem::new(format!("mqtt.bindings[{index}].shared"), problem));
            }
        }
        problems
    }

    /// The bindings that push features although callers over MQTT have no permission to push.
    fn writer_problems(&self) -> Vec<ValueProblem> {
        if self.access.mqtt.access().allows(Permission::WriteFeatures) {
            return Vec::new();
        }
        let refused = |(index, binding): (usize, &BindingConfig)| {
            let key = match binding.target()? {
                PushTarget::View(_) => "feature_view",
                PushTarget::Source(_) => "push_source",
            };
            let problem = "needs the permission to push over MQTT: add feature-writer to access.mqtt.roles";
            Some(ValueProblem::new(format!("mqtt.bindings[{index}].{key}"), problem))
        };
        self.mqtt.bindings.iter().enumerate().filter_map(refused).collect()
    }

    /// Holders of certificates, where no certificate is requested.
    fn certificate_problem(&self) -> Option<ValueProblem> {
        let asks = self.http.tls.client_certificates != ClientCertificates::None;
        let problem = "has no effect, because the server does not ask for client certificates: set \
                       http.tls.client_certificates to \"optional\" or \"required\"";
        (!asks && !self.access.certificates.is_empty()).then(|| ValueProblem::new("access.certificates", problem))
    }

    /// Addresses of gRPC that HTTP has too, and TLS that is on only for gRPC, without a certificate.
    fn grpc_problems(&self) -> Vec<ValueProblem> {
        let taken = |address: &ListenAddress| self.http.listen.iter().any(|other| other.conflicts_with(address));
        let listed = self.grpc.listen.iter().enumerate().filter(|(_, address)| taken(address));
        let listed = listed.map(|(index, address)| {
            ValueProblem::new(format!("grpc.listen[{index}]"), format!("{address} is also in http.listen"))
        });
        let needs_tls = self.grpc.listen.iter().any(ListenAddress::is_tls) && !self.http.serves_tls();
        let of_tls = needs_tls.then(|| self.http.tls.missing_certificate("grpc.listen")).flatten();
        listed.chain(of_tls.map(|problem| problem.within("http"))).collect()
    }

    /// The reason why no caller could get in from the network, although this box listens there.
    pub fn lets_nobody_in(&self) -> Option<String> {
        let keys = self.state.path.join(keys::FILE);
        let is_exposed = self.http.is_exposed() || self.grpc.listen.iter().any(ListenAddress::is_exposed);
        is_exposed.then(|| self.access.lets_nobody_in(&keys)).flatten()
    }

    /// The mistakes in values that are well-formed. The sections `unread` have only their defaults: they are not
    /// checked, and no section is compared with another.
    fn problems(&self, unread: &BTreeSet<String>) -> Vec<ValueProblem> {
        let of_section = |(name, section): (&'static str, &dyn ConfigSection)| {
            let problems = section.problems().into_iter();
            problems.map(move |problem| problem.within(name))
        };
        let read = self.sections().into_iter().filter(|(name, _)| !unread.contains(*name));
        let mut problems: Vec<_> = read.flat_map(of_section).collect();
        if !unread.is_empty() {
            return problems;
        }
        let destinations = self.destinations();
        problems.extend(destinations.iter().flat_map(|destination| destination.problems(&self.egress)));
        problems.extend(self.certificate_problem());
        problems.extend(self.grpc_problems());
        problems.extend(self.group_problems());
        problems.extend(self.camera_problems());
        problems.extend(self.receiver_problems());
        problems.extend(self.writer_problems());
        problems
    }
}
