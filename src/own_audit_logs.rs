//! The audit logs of this box, with the keys to verify them with.

use anyhow::bail;
use ledge_audit::files::{AuditFilesError, AuditLogFiles};
use ledge_audit::key::AuditKey;
use ledge_audit::layout::log_folder;
use ledge_audit::local::{self, LocalAuditLog};
use ledge_audit::restored::{EarlierLogs, earlier_logs};
use ledge_audit::verify::LogToVerify;
use ledge_base::names::DeviceName;
use ledge_identity::device;
use ledge_identity::sealing::Sealer;

use crate::config::Config;

/// The logs of this box with its verifier keys, the oldest first. Never empty.
pub fn own_logs(config: &Config) -> anyhow::Result<Vec<LogToVerify>> {
    let folder = &config.audit.path;
    let current = own_key(config)?;
    let mut places = Vec::new();
    for generation in local::generations(folder).map_err(|error| AuditFilesError::of(folder, error))? {
        let log = LocalAuditLog::open(&log_folder(folder, generation));
        let mut keys: Vec<String> = key_of(config, &log)?.into_iter().collect();
        keys.extend(current.clone().filter(|key| !keys.contains(key)));
        places.push(LogToVerify { files: AuditLogFiles::Local(log), generation: Some(generation), keys });
    }
    for EarlierLogs { folder, verifier_key } in
        earlier_logs(folder).map_err(|error| AuditFilesError::of(folder, error))?
    {
        for generation in local::generations(&folder).map_err(|error| AuditFilesError::of(&folder, error))? {
            let files = AuditLogFiles::Local(LocalAuditLog::open(&log_folder(&folder, generation)));
            places.push(LogToVerify { files, generation: Some(generation), keys: vec![verifier_key.clone()] });
        }
    }
    places.sort_by_key(|place| place.generation);
    if places.is_empty() {
        bail!("this box has no audit log yet in {}: the first start of the daemon makes it", folder.display());
    }
    Ok(places)
}

/// This box's verifier key; `None` before the first start.
pub fn own_key(config: &Config) -> anyhow::Result<Option<String>> {
    let Some(device) = device::load(&config.state.path, &config.device)? else { return Ok(None) };
    let sealer = Sealer::load(&config.encryption)?;
    Ok(AuditKey::verifier_key_in(&config.audit.path, &device.id, &sealer)?)
}

/// This box's verifier key with the name in the log: the box may have been renamed since.
fn key_of(config: &Config, log: &LocalAuditLog) -> anyhow::Result<Option<String>> {
    let note = log.checkpoint().map_err(|error| AuditFilesError::of(log.folder(), error))?.unwrap_or_default();
    let origin = note.split(|byte| *byte == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
    let name = origin.and_then(|origin| origin.strip_prefix("ledge.audit/")?.rsplit_once('/'));
    let Some(device) = name.and_then(|(device, _)| device.parse::<DeviceName>().ok()) else { return Ok(None) };
    let sealer = Sealer::load(&config.encryption)?;
    Ok(AuditKey::verifier_key_in(&config.audit.path, &device, &sealer)?)
}
