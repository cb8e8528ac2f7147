//! The listener for the Prometheus of a platform: the sections `http` and `access` in the settings of a membership.

use std::collections::BTreeMap;
use std::fmt;

use ledge_base::toml_check::{self, CheckedToml, TomlEntryPlace};
use ledge_listener::address::ListenAddress;
use toml::{Table, Value};

use super::{Config, ValueOrigin, ValueOrigins};

/// The keys of the owner with which the certificate of the membership would not be shown, or clients of another
/// authority would be verified.
const OWN_TLS_KEYS: [&str; 5] = [
    "http.tls.certificate_file",
    "http.tls.key_file",
    "http.tls.self_signed",
    "http.tls.client_ca_file",
    "http.tls.client_certificates",
];

const OWN_TLS_REMEDY: &str = "remove the keys of [http.tls], which the membership sets, or let your own Prometheus read this \
                              box with an API key";

/// Whether the Prometheus of the platform can read the metrics of this box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlatformMetrics {
    /// It can, at this address.
    Served { address: ListenAddress },
    /// A setting of the owner hides the address.
    Hidden { address: ListenAddress, key: &'static str, origin: ValueOrigin },
}

impl PlatformMetrics {
    /// The reason why Prometheus cannot read them, if so.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Served { .. } => None,
            Self::Hidden { address, key, origin } => Some(format!(
                "the platform's Prometheus cannot read the metrics of this box: {key} is set in {origin}, so {address} \
                 is not served with the certificate of the membership"
            )),
        }
    }

    /// What the owner can do about a [`Self::problem`].
    pub fn remedy(&self) -> String {
        match self {
            Self::Hidden { address, key: "http.listen", .. } => format!("add \"{address}\" to http.listen"),
            Self::Served { .. } | Self::Hidden { .. } => OWN_TLS_REMEDY.to_owned(),
        }
    }
}

impl fmt::Display for PlatformMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served { address } => write!(f, "{address} serves metrics to the platform's Prometheus"),
            Self::Hidden { address, .. } => write!(f, "{address} is not served to the platform's Prometheus"),
        }
    }
}

/// The listener as the settings of a membership have it.
pub(super) struct MetricsListener {
    source: String,
    address: ListenAddress,
    tls: Table,
    certificate: Value,
    places: BTreeMap<String, TomlEntryPlace>,
}

impl MetricsListener {
    /// Takes both sections out of the settings of a membership.
    pub fn take(source: &str, checked: &mut CheckedToml<Config>) -> Option<Self> {
        let (mut http, access) = (checked.table.remove("http")?, checked.table.remove("access")?);
        let (places, others) = std::mem::take(&mut checked.places)
            .into_iter()
            .partition(|(key, _)| ["http", "access"].contains(&toml_check::section(key)));
        checked.places = others;
        Some(Self {
            source: source.to_owned(),
            address: http.get("listen")?.get(0)?.as_str()?.parse().ok()?,
            tls: std::mem::take(http.get_mut("tls")?.as_table_mut()?),
            certificate: access.get("certificates")?.get(0)?.clone(),
            places,
        })
    }

    /// Adds it to the values of all other sources. Where the owner has set `[http.tls]`, nothing is added: the listener
    /// would show a certificate that Prometheus does not trust, and the access would be for certificates of another
    /// authority. Where the owner has set `http.listen`, the address is served only if it is in there.
    pub fn add_to(self, table: &mut Table, positions: &mut ValueOrigins) -> PlatformMetrics {
        let origin = |key: &str| positions.get(key).map(|(origin, _)| origin.clone());
        let address = self.address.clone();
        if let Some((key, origin)) = OWN_TLS_KEYS.into_iter().find_map(|key| Some((key, origin(key)?))) {
            return PlatformMetrics::Hidden { address, key, origin };
        }
        let own_listen = origin("http.listen");

        let Some(http) = table.get_mut("http").and_then(Value::as_table_mut) else {
            return PlatformMetrics::Served { address };
        };
        if let Some(tls) = http.get_mut("tls").and_then(Value::as_table_mut) {
            tls.extend(self.tls);
        }
        if let (None, Some(Value::Array(listen))) = (&own_listen, http.get_mut("listen")) {
            listen.push(address.to_string().into());
        }
        // The owner may write a single address without brackets.
        let listed = match http.get("listen") {
            Some(Value::Array(listed)) => listed.as_slice(),
            Some(single) => std::slice::from_ref(single),
            None => &[],
        };
        let mut known = listed.iter().filter_map(|known| known.as_str()?.parse().ok());
        let is_listed = known.any(|known| serves(&known, &address));
        let access = table.get_mut("access").and_then(Value::as_table_mut);
        let certificates = access.and_then(|access| access.get_mut("certificates")?.as_array_mut());
        let mut index = None;
        if let Some(certificates) = certificates
            && certificates.iter().all(|known| known.get("name") != self.certificate.get("name"))
        {
            index = Some(certificates.len());
            certificates.push(self.certificate);
        }

        for (key, TomlEntryPlace { line, is_section }) in self.places {
            let key = match (key.strip_prefix("access.certificates[0]"), index) {
                (Some(rest), Some(index)) => format!("access.certificates[{index}]{rest}"),
                _ if key.starts_with("http.tls.") => key,
                _ if key == "http.listen" && own_listen.is_none() => key,
                _ => continue,
            };
            positions.insert(key, (ValueOrigin { source: self.source.clone(), line: Some(line) }, is_section));
        }
        match own_listen {
            Some(origin) if !is_listed => PlatformMetrics::Hidden { address, key: "http.listen", origin },
            _ => PlatformMetrics::Served { address },
        }
    }
}

/// True if callers of the port of `wanted` reach `listener` with TLS.
fn serves(listener: &ListenAddress, wanted: &ListenAddress) -> bool {
    match (listener, wanted) {
        (ListenAddress::Tls(listener), ListenAddress::Tls(wanted)) => listener.port() == wanted.port(),
        _ => false,
    }
}
