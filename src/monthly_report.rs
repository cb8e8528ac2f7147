//! The input of the report of a month on this box: its logs, the names of callers, and its settings.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Context as _;
use ledge_audit::tags;
use ledge_base::month::Month;
use ledge_base::principal::Principal;
use ledge_identity::device;
use ledge_identity::keys::ApiKeyStore;
use ledge_identity::sealing::Sealer;
use ledge_report::read::{CallerNames, ReportSource, setting_keys};
use serde_json::Value;

use crate::config::Config;
use crate::own_audit_logs::own_logs;
use crate::own_figures;

/// The source of the report of a month of the box with this configuration.
pub fn source(config: &Config, month: Month) -> anyhow::Result<ReportSource> {
    let device = device::load(&config.state.path, &config.device)?;
    let keys = tags::all(&config.audit.path, &Sealer::load(&config.encryption)?)?;
    Ok(ReportSource {
        logs: own_logs(config)?,
        names: CallerNames::new(&keys, &callers(config)?),
        device: device.map_or_else(String::new, |device| device.id.to_string()),
        settings: settings(config)?,
        added: own_figures::sections(config, month),
    })
}

/// The callers whose names this box knows. Others are tags in a report, such as those of addresses and topics.
fn callers(config: &Config) -> anyhow::Result<Vec<Principal>> {
    let mut callers = vec![
        Principal::Peer(Ipv4Addr::LOCALHOST.into()),
        Principal::Peer(Ipv6Addr::LOCALHOST.into()),
        Principal::User(0),
        Principal::User(rustix::process::geteuid().as_raw()),
    ];
    let keys = ApiKeyStore::new(&config.state.path).list().context("the names of API keys cannot be read")?;
    callers.extend(keys.iter().map(|key| Principal::Key(key.name.as_str().into())));
    callers.extend(config.access.users.iter().filter_map(|user| user.user.uid()).map(Principal::User));
    callers.extend(config.access.certificates.iter().map(|of| Principal::Certificate(of.name.as_str().into())));
    callers.extend(config.camera.0.iter().map(|camera| Principal::Camera(camera.name.as_str().into())));
    callers.extend(config.inbox.0.iter().map(|inbox| Principal::Inbox(inbox.name.as_str().into())));
    Ok(callers)
}

/// The settings that a report shows, by key.
fn settings(config: &Config) -> anyhow::Result<BTreeMap<String, Value>> {
    let all = serde_json::to_value(config)?;
    let setting = |key: String| {
        let value = all.pointer(&format!("/{}", key.replace('.', "/"))).cloned().unwrap_or_default();
        (key, value)
    };
    Ok(setting_keys().into_iter().map(setting).collect())
}
