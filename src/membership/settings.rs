//! The settings of a member: a source of the configuration, made from the join file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ledge_base::names::DeviceName;
use ledge_egress::{EgressContent, Host, HostPort, InvalidHostPort, WebAddress};
use toml::{Table, Value};

use crate::folder::{MembershipFolder, SETTINGS_FILE};
use crate::join::MEMBERSHIP_CREDENTIAL;
use crate::join_file::Invitation;

/// The port of MQTT over TLS.
const MQTT_TLS_PORT: u16 = 8883;

/// The common name of the certificate of the platform's Prometheus, which no box has.
pub const SCRAPER_NAME: &str = "prometheus";

/// The least role that reads `/metrics`.
const SCRAPER_ROLE: &str = "viewer";

/// The reason why a join file makes no settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("an address in it is no address: {0:?}")]
    Address(String),
    #[error("its settings are no TOML: {0}")]
    Settings(#[from] toml::de::Error),
    #[error("its settings cannot be written: {0}")]
    Encode(#[from] toml::ser::Error),
    #[error("it sets {0}, which only the owner of the box may set")]
    Forbidden(String),
}

/// The settings of a box that is called `device` and has this `invitation`, as a TOML text. `is_settable` says which
/// keys a platform may set. With `has_credential`, a credential of the service has the key for the private keys.
pub fn compose(
    invitation: &Invitation,
    device: &DeviceName,
    folder: &MembershipFolder,
    has_credential: bool,
    is_settable: impl Fn(&str) -> bool,
) -> Result<String, SettingsError> {
    let mut settings: Table = invitation.settings.as_deref().unwrap_or_default().parse()?;
    let forbidden = keys_of("", &settings).into_iter().find(|key| !is_settable(key));
    if let Some(key) = forbidden {
        return Err(SettingsError::Forbidden(key));
    }

    set(&mut settings, "device", "id", device.as_str());
    if has_credential {
        set(&mut settings, "membership", "key_file", &format!("credential:{MEMBERSHIP_CREDENTIAL}"));
    }
    for (key, name) in [("fleet", &invitation.fleet), ("group", &invitation.group)] {
        if let Some(name) = name {
            set(&mut settings, "device", key, name.as_str());
        }
    }

    if invitation.packages {
        set_in(&mut settings, &["upgrades"], "enable", true);
    }
    let mut destinations = vec![(invitation.join.at.clone(), vec![EgressContent::CertificateRequest])];
    if let Some(updates) = &invitation.updates {
        destinations.push((web(updates)?.at, vec![EgressContent::Request]));
        set(&mut settings, "updates", "repository", updates);
        set(&mut settings, "updates", "root_file", &folder.root_file().display().to_string());
        set_tls(&mut settings, &["updates"], folder);
    }
    if let Some(broker) = &invitation.broker {
        destinations.push((broker_address(broker)?, vec![EgressContent::Presence, EgressContent::Report]));
        set(&mut settings, "mqtt", "broker", broker);
        set_tls(&mut settings, &["mqtt"], folder);
    }
    if let Some(audit) = &invitation.audit {
        destinations.push((web(audit)?.at, vec![EgressContent::Audit]));
        set_in(&mut settings, &["audit", "sync"], "url", audit.as_str());
        set_tls(&mut settings, &["audit", "sync"], folder);
    }
    if let Some(metrics) = &invitation.metrics {
        set_metrics(&mut settings, metrics, folder);
    }
    let allow = allowed(destinations, invitation.region.as_str());
    settings.entry("egress").or_insert_with(|| Table::new().into());
    if let Some(Value::Table(egress)) = settings.get_mut("egress") {
        egress.insert("allow".to_owned(), Value::Array(allow));
    }

    let head = format!(
        "# Written by `ledge join`, for the platform {:?}. Your own settings override these; set what you want otherwise\n\
         # in ledge.toml and not in this {SETTINGS_FILE}.\n",
        invitation.platform
    );
    Ok(head + &toml::to_string(&settings)?)
}

/// A listener with the certificate of this box, and access for the certificate of the platform's Prometheus. The
/// configuration takes all of it or nothing, and adds the entries of both lists to those of the other sources.
fn set_metrics(settings: &mut Table, metrics: &HostPort, folder: &MembershipFolder) {
    let any: IpAddr = match &metrics.host {
        Host::Ip(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        Host::Ip(IpAddr::V4(_)) | Host::Name(_) => Ipv4Addr::UNSPECIFIED.into(),
    };
    let listen = format!("https://{}", SocketAddr::from((any, metrics.port)));
    set_in(settings, &["http"], "listen", Value::Array(vec![listen.into()]));
    let identity = folder.identity_file().display().to_string();
    let tls = ["http", "tls"];
    set_in(settings, &tls, "certificate_file", identity.as_str());
    set_in(settings, &tls, "key_file", identity);
    set_in(settings, &tls, "client_ca_file", folder.ca_file().display().to_string());
    set_in(settings, &tls, "client_certificates", "optional");
    let scraper = [("name", Value::from(SCRAPER_NAME)), ("roles", Value::Array(vec![SCRAPER_ROLE.into()]))];
    let scraper = Value::Table(scraper.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
    set_in(settings, &["access"], "certificates", Value::Array(vec![scraper]));
}

/// An entry of `[[egress.allow]]` for each destination, with all that it may get.
fn allowed(destinations: Vec<(HostPort, Vec<EgressContent>)>, region: &str) -> Vec<Value> {
    let mut entries: Vec<(HostPort, Vec<EgressContent>)> = Vec::new();
    for (at, contents) in destinations {
        match entries.iter_mut().find(|(known, _)| *known == at) {
            Some((_, known)) => known.extend(contents),
            None => entries.push((at, contents)),
        }
    }
    let entry = |(at, contents): (HostPort, Vec<EgressContent>)| {
        let send = contents.into_iter().map(|content| Value::from(content.name())).collect();
        let entry =
            [("host", Value::from(at.to_string())), ("region", Value::from(region)), ("send", Value::Array(send))];
        Value::Table(entry.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    };
    entries.into_iter().map(entry).collect()
}

fn web(address: &str) -> Result<WebAddress, SettingsError> {
    address.parse().map_err(|_| SettingsError::Address(address.to_owned()))
}

fn broker_address(broker: &str) -> Result<HostPort, SettingsError> {
    let read = || {
        let rest = broker.strip_prefix("mqtts://").ok_or(InvalidHostPort)?.trim_end_matches('/');
        rest.parse().or_else(|_| HostPort::new(rest, MQTT_TLS_PORT))
    };
    read().map_err(|_: InvalidHostPort| SettingsError::Address(broker.to_owned()))
}

fn set(settings: &mut Table, section: &str, key: &str, value: &str) {
    set_in(settings, &[section], key, value);
}

/// Sets a key of a section within sections.
fn set_in(settings: &mut Table, sections: &[&str], key: &str, value: impl Into<Value>) {
    match sections {
        [] => {
            settings.insert(key.to_owned(), value.into());
        }
        [first, within @ ..] => {
            let section = settings.entry(*first).or_insert_with(|| Table::new().into());
            if let Value::Table(section) = section {
                set_in(section, within, key, value);
            }
        }
    }
}

/// The files of the TLS client in a section.
fn set_tls(settings: &mut Table, section: &[&str], folder: &MembershipFolder) {
    let identity = folder.identity_file().display().to_string();
    let tls = [section, &["tls"]].concat();
    set_in(settings, &tls, "ca_file", folder.ca_file().display().to_string());
    set_in(settings, &tls, "certificate_file", identity.as_str());
    set_in(settings, &tls, "key_file", identity);
}

/// The keys of all values, such as `serving.max_queue_size`.
fn keys_of(prefix: &str, table: &Table) -> Vec<String> {
    let keys = table.iter().flat_map(|(name, value)| {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(within) => keys_of(&key, within),
            _ => vec![key],
        }
    });
    keys.collect()
}
