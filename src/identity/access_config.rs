//! The section `[access]` of the configuration: permissions of callers without an API key.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use ledge_base::names::ModelName;
use ledge_base::token_bucket::CallRate;
use ledge_base::toml_check::{ValueProblem, from_text, in_range};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::access::{CallerAccess, Role, ViewScope};
use super::listed_names;

/// The list of users of this system.
const PASSWD_FILE: &str = "/etc/passwd";

/// The longest name of a certificate, in bytes: it appears in log lines and audit records.
const CERTIFICATE_NAME_BYTES_MAX: usize = 256;

/// The permissions of callers without an API key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// The roles of callers over TCP from this machine.
    pub loopback: Vec<Role>,
    /// The roles of callers over the Unix socket.
    pub socket: Vec<Role>,
    /// Users of this machine. The Unix socket reports their ids.
    pub users: Vec<UserAccess>,
    pub certificates: Vec<CertificateAccess>,
    pub mqtt: MqttAccess,
    /// The time after which a sign-in at the console ends, if its person does nothing.
    #[serde(deserialize_with = "in_range::<1, 1440, _, _>")]
    pub session_idle_minutes: u32,
}

impl Default for AccessConfig {
    fn default() -> Self {
        let roles = vec![Role::Viewer, Role::Infer, Role::FeatureWriter];
        Self {
            loopback: roles.clone(),
            socket: roles,
            users: Vec::new(),
            certificates: Vec::new(),
            mqtt: MqttAccess::default(),
            session_idle_minutes: 30,
        }
    }
}

/// `[[access.users]]`: a user of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserAccess {
    /// The name, or the number.
    pub user: SystemUser,
    pub roles: Vec<Role>,
    /// The models it covers; without it, or with `["*"]`, all of them.
    #[serde(default = "all_models", deserialize_with = "listed_names::read", serialize_with = "write_models")]
    pub models: Option<Vec<ModelName>>,
    /// The feature views whose values it may read and push. Without it all of them, or none where `models` names some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_views: Option<ViewScope>,
}

/// `[[access.certificates]]`: the holder of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateAccess {
    /// The common name of its subject, or one of its alternative names.
    pub name: CertificateName,
    pub roles: Vec<Role>,
    /// The models it covers; without it, or with `["*"]`, all of them.
    #[serde(default = "all_models", deserialize_with = "listed_names::read", serialize_with = "write_models")]
    pub models: Option<Vec<ModelName>>,
    /// The feature views whose values it may read and push. Without it all of them, or none where `models` names some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_views: Option<ViewScope>,
    /// The most requests a second, over time; 0 is no limit.
    #[serde(default)]
    pub max_rate: CallRate,
    /// The most requests at a time; 0 is no limit.
    #[serde(default, deserialize_with = "in_range::<0, 1_000_000, _, _>")]
    pub max_concurrent: u32,
}

/// `[access.mqtt]`: callers behind the broker, who come without a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MqttAccess {
    /// Their roles: calling models, and pushing features through bindings.
    pub roles: Vec<Role>,
    /// The models they may call; `["*"]` is all of them.
    #[serde(deserialize_with = "listed_names::read", serialize_with = "write_models")]
    pub models: Option<Vec<ModelName>>,
}

impl Default for MqttAccess {
    fn default() -> Self {
        Self { roles: vec![Role::Infer, Role::FeatureWriter], models: None }
    }
}

impl MqttAccess {
    /// The access that this section grants.
    pub fn access(&self) -> CallerAccess {
        CallerAccess::new(self.roles.iter().copied(), self.models.clone(), None)
    }
}

impl AccessConfig {
    /// Mistakes between well-formed values: the key within the section, and the remedy.
    pub fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        for (index, entry) in self.users.iter().enumerate() {
            let uid = entry.user.uid();
            let is_same =
                |earlier: &UserAccess| earlier.user == entry.user || (uid.is_some() && earlier.user.uid() == uid);
            if self.users.iter().take(index).any(is_same) {
                let problem = format!("the user {:?} is named twice", entry.user.0);
                problems.push(ValueProblem::new(format!("users[{index}].user"), problem));
            }
        }
        for (index, entry) in self.certificates.iter().enumerate() {
            if self.certificates.iter().take(index).any(|earlier| earlier.name == entry.name) {
                let problem = format!("{} is named twice", entry.name);
                problems.push(ValueProblem::new(format!("certificates[{index}].name"), problem));
            }
        }
        let useful = [Role::Infer, Role::FeatureWriter, Role::Admin];
        for (index, role) in self.mqtt.roles.iter().enumerate().filter(|(_, role)| !useful.contains(role)) {
            let problem = format!("the role {role} grants nothing over MQTT: use infer, feature-writer or admin");
            problems.push(ValueProblem::new(format!("mqtt.roles[{index}]"), problem));
        }
        problems
    }

    /// Entries without effect that are not mistakes, such as a user who has left: the key within the section, and the
    /// remedy.
    pub fn warnings(&self) -> Vec<ValueProblem> {
        let warning = |(index, entry): (usize, &UserAccess)| {
            let problem = format!(
                "there is no user {:?} in {PASSWD_FILE}, so no caller gets these roles: remove the entry, or give the \
                 number of the user if it comes from another source, such as LDAP",
                entry.user.0
            );
            entry.user.uid().is_none().then(|| ValueProblem::new(format!("users[{index}].user"), problem))
        };
        self.users.iter().enumerate().filter_map(warning).collect()
    }

    /// The problem that no caller beyond loopback could be authenticated, if so. `keys` is the store of API keys.
    pub fn lets_nobody_in(&self, keys: &Path) -> Option<String> {
        let problem = "no caller from the network could be authenticated: create an API key (ledge keys create NAME \
                       --role infer), or list client certificates in access.certificates";
        // Without permission to look, assume that there are keys.
        let is_without_keys = matches!(keys.try_exists(), Ok(false));
        (self.certificates.is_empty() && is_without_keys).then(|| problem.to_owned())
    }
}

fn all_models() -> Option<Vec<ModelName>> {
    None
}

#[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
fn write_models<S: Serializer>(models: &Option<Vec<ModelName>>, serializer: S) -> Result<S::Ok, S::Error> {
    listed_names::write(models.as_deref(), serializer)
}

/// The name or the number of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemUser(String);

/// A text that is not the name or number of a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the name or the number of a user, got {text:?}")]
pub struct InvalidSystemUser {
    text: String,
}

impl SystemUser {
    /// Its number, from this system's list of users.
    pub fn uid(&self) -> Option<u32> {
        if let Ok(number) = self.0.parse() {
            return Some(number);
        }
        let users = fs::read_to_string(PASSWD_FILE).ok()?;
        uid_in(&users, &self.0)
    }
}

fn uid_in(users: &str, name: &str) -> Option<u32> {
    let mut found = users.lines().map(|line| line.split(':')).filter_map(|mut fields| {
        let is_it = fields.next() == Some(name);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    });
    found.next()
}

impl FromStr for SystemUser {
    type Err = InvalidSystemUser;

    fn from_str(text: &str) -> Result<Self, InvalidSystemUser> {
        let valid = !text.is_empty()
            && text.len() <= 256
            && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b':' | b'/' | b','));
        // A number has no leading zeros, so that each user has one text.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let is_canonical = !is_number || text.parse::<u32>().is_ok_and(|number| number.to_string() == text);
        if valid && is_canonical {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidSystemUser { text: text.chars().take(40).collect() })
        }
    }
}

impl<'de> Deserialize<'de> for SystemUser {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for SystemUser {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// A name in a certificate: printable, without spaces at its ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateName(String);

/// A text that is not the name of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to {CERTIFICATE_NAME_BYTES_MAX} printable characters, got {text:?}")]
pub struct InvalidCertificateName {
    text: String,
}

impl CertificateName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CertificateName {
    type Err = InvalidCertificateName;

    fn from_str(text: &str) -> Result<Self, InvalidCertificateName> {
        let valid = !text.is_empty()
            && text.len() <= CERTIFICATE_NAME_BYTES_MAX
            && text.trim() == text
            && !text.chars().any(char::is_control);
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidCertificateName { text: text.chars().take(40).collect() })
        }
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for CertificateName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for CertificateName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name_or_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\ntill:x:1000:1000::/home/till:/bin/sh\nbroken\n";
        assert_eq!(uid_in(users, "till"), Some(1000));
        assert_eq!((uid_in(users, "x"), uid_in(users, "broken")), (None, None));
        assert_eq!("1000".parse::<SystemUser>().unwrap().uid(), Some(1000));
        assert_eq!("root".parse::<SystemUser>().unwrap().uid(), Some(0));
        for bad in ["", "a:b", "a b", "007", "99999999999", "a\n"] {
            assert!(bad.parse::<SystemUser>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_come_once_and_a_user_who_is_gone_is_no_mistake() {
        let text = "users = [{ user = \"root\", roles = [\"viewer\"] }, { user = \"0\", roles = [] }, \
                    { user = \"gone\", roles = [] }, { user = \"gone\", roles = [] }]\n\
                    certificates = [{ name = \"a\", roles = [] }, { name = \"a\", roles = [] }]";
        let config: AccessConfig = toml::from_str(text).unwrap();
        let keys = |told: Vec<ValueProblem>| told.into_iter().map(|problem| problem.key).collect::<Vec<_>>();
        assert_eq!(keys(config.problems()), ["users[1].user", "users[3].user", "certificates[1].name"]);
        assert_eq!(keys(config.warnings()), ["users[2].user", "users[3].user"]);
    }

    #[test]
    fn roles_that_may_do_nothing_over_mqtt_are_a_mistake() {
        for (role, problems) in [("infer", 0), ("feature-writer", 0), ("admin", 0), ("viewer", 1), ("auditor", 1)] {
            let config: AccessConfig = toml::from_str(&format!("mqtt = {{ roles = [\"infer\", {role:?}] }}")).unwrap();
            assert_eq!(config.problems().len(), problems, "{role}");
        }
    }

    #[test]
    fn all_models_are_a_star_alone_and_an_empty_list_is_none() {
        let models = |list: &str| {
            let config: Result<AccessConfig, _> = toml::from_str(&format!("mqtt = {{ models = {list} }}"));
            config.ok().map(|config| config.mqtt.models.map(|models| models.len()))
        };
        assert_eq!(models("[\"*\"]"), Some(None));
        assert_eq!((models("[]"), models("[\"a\"]")), (Some(Some(0)), Some(Some(1))));
        assert_eq!((models("[\"a\", \"*\"]"), models("[\"a b\"]"), models("\"*\"")), (None, None, None));
        let config: AccessConfig = toml::from_str("users = [{ user = \"0\", roles = [] }]").unwrap();
        assert_eq!(toml::from_str::<AccessConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn a_box_that_the_network_reaches_needs_a_way_in() {
        let folder = tempfile::tempdir().unwrap();
        let (none, mut config) = (folder.path().join("keys.json"), AccessConfig::default());
        assert!(config.lets_nobody_in(&none).is_some());
        assert_eq!(config.lets_nobody_in(folder.path()), None);
        assert_eq!(config.lets_nobody_in(&folder.path().join("x".repeat(300))), None, "nobody knows");
        config = toml::from_str("certificates = [{ name = \"till\", roles = [\"infer\"] }]").unwrap();
        assert_eq!(config.lets_nobody_in(&none), None);
    }

    #[test]
    fn by_default_who_is_on_this_machine_looks_asks_and_pushes_and_no_more() {
        use crate::access::Permission;
        let AccessConfig { loopback, socket, mqtt, .. } = AccessConfig::default();
        assert_eq!(loopback, socket);
        let access = CallerAccess::new(loopback, None, None);
        let may: Vec<_> = Permission::ALL.into_iter().filter(|permission| access.allows(*permission)).collect();
        assert!(!may.contains(&Permission::Operate) && !may.contains(&Permission::Administer));
        assert!(!may.contains(&Permission::Audit) && may.contains(&Permission::Infer));
        assert!(!mqtt.access().allows(Permission::View));
    }
}
