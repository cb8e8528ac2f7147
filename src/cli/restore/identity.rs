//! Private keys, the membership and the audit log of a restored box.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use ledge_audit::restored::begin_after_restore;
use ledge_base::durable;
use ledge_egress::{AllowedDestination, EgressContent};
use ledge_identity::sealing::EncryptionPurpose;
use ledge_membership::folder::SETTINGS_FILE;
use ledge_membership::join::MEMBERSHIP_CREDENTIAL;
use zeroize::Zeroizing;

use crate::cli::backup::archive::BackupManifest;
use crate::cli::backup::contents::{BoxFolders, CREDENTIALS, UPGRADES};
use crate::cli::join::{self, encrypt_credential, membership_key};
use crate::cli::{GlobalArgs, Output};
use crate::config::{Config, LoadedConfig};

/// The drop-in that passes restored credentials to the service.
const DROP_IN: &str = "/etc/systemd/system/ledge.service.d/restored-credentials.conf";

/// The folder of credentials that systemd does not keep, in the state folder.
const CREDENTIALS_FOLDER: &str = "restored-credentials";

/// The files of a membership that may have a private key.
const PRIVATE_FILES: [&str; 3] = ["membership.json", "identity.pem", "request.json"];

/// Keys that do not belong into a folder of the box.
#[derive(Default)]
pub struct RestoredKeys {
    credentials: BTreeMap<String, Zeroizing<Vec<u8>>>,
    upgrades: BTreeMap<String, Zeroizing<Vec<u8>>>,
    /// The file of systemd with the key of the membership.
    membership: Option<String>,
}

impl RestoredKeys {
    /// Takes an entry of the file of keys.
    pub fn take(&mut self, kind: &str, name: &str, body: &mut dyn Read) -> anyhow::Result<()> {
        let known = match kind {
            CREDENTIALS => &mut self.credentials,
            UPGRADES => &mut self.upgrades,
            _ => return Ok(()),
        };
        if name.contains('/') || name.starts_with('.') {
            bail!("it has a name that is not allowed: {name:?}");
        }
        known.insert(name.to_owned(), super::small(body)?);
        Ok(())
    }

    /// The content of a credential.
    pub fn credential(&self, name: &str) -> Option<&[u8]> {
        self.credentials.get(name).map(|content| content.as_slice())
    }

    /// Encrypts the private keys of the staged membership for this machine, or leaves them plain where it cannot.
    pub fn encrypt_membership(
        &mut self,
        config: &Config,
        folders: &BoxFolders,
        said: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let folder = &config.membership.path;
        let settings = folder.join(SETTINGS_FILE);
        if !settings.is_file() {
            return Ok(());
        }
        let credential = join::new_credential()?;
        let key = if has_systemd(folders) { membership_key(&credential)? } else { None };
        let text = std::fs::read_to_string(&settings).with_context(|| settings.display().to_string())?;
        let mut table: toml::Table = text.parse().with_context(|| settings.display().to_string())?;
        if key.is_some() {
            let mut membership = toml::Table::new();
            membership.insert("key_file".to_owned(), format!("credential:{MEMBERSHIP_CREDENTIAL}").into());
            table.insert("membership".to_owned(), membership.into());
        } else {
            table.remove("membership");
            said.push(
                "the private keys of the membership are protected only by the permissions of its folder: systemd \
                 encrypts none here"
                    .to_owned(),
            );
        }
        let text = format!("# Written by `ledge join`, and restored from a backup.\n{}", toml::to_string(&table)?);
        durable::replace_private(&settings, text.as_bytes())?;

        let Some(sealer) = key else { return Ok(()) };
        for name in PRIVATE_FILES {
            let path = folder.join(name);
            if path.is_file() {
                let plain = Zeroizing::new(std::fs::read(&path)?);
                let encrypted = sealer.seal(EncryptionPurpose::Membership, &[], &plain)?;
                durable::replace_alike(&path, &encrypted)?;
            }
        }
        self.membership = Some(credential);
        Ok(())
    }

    /// Lets systemd keep the credentials of the service, or puts them into the staged state folder.
    pub fn keep_credentials(&self, state: &Path, folders: &BoxFolders, said: &mut Vec<String>) -> anyhow::Result<()> {
        let mut text = "# Written by `ledge restore`.\n[Service]\n".to_owned();
        let mut is_any = false;
        for (name, content) in &self.credentials {
            let place = format!("{}/{name}", join::CREDENTIALS);
            if has_systemd(folders) && encrypt_credential(name, &place, content)? {
                let _ = writeln!(text, "LoadCredentialEncrypted={name}:{place}");
                is_any = true;
                continue;
            }
            let folder = state.join(CREDENTIALS_FOLDER);
            durable::create_folder(&folder)?;
            durable::replace_private(&folder.join(name), content)?;
            said.push(format!(
                "the credential {name} is in {}: pass it to the service (LoadCredential={name}:FILE), or name the file \
                 in the settings",
                folders.state.join(CREDENTIALS_FOLDER).join(name).display()
            ));
        }
        if is_any {
            durable::replace_in_new_folder(Path::new(DROP_IN), text.as_bytes()).with_context(|| DROP_IN.to_owned())?;
            said.push(format!("{DROP_IN} passes the credentials to the service"));
        }
        Ok(())
    }

    /// Writes what is outside of the box's folders: the opening of the unit to the platform, and root's trusted metadata.
    pub fn keep_upgrades(&self, folders: &BoxFolders, globals: &GlobalArgs) -> anyhow::Result<()> {
        if !folders.is_packaged {
            return Ok(());
        }
        let LoadedConfig { config, metrics, .. } = globals.load()?;
        for (name, content) in &self.upgrades {
            durable::replace_in_new_folder(&config.upgrades.path.join(name), content)?;
        }
        if has_systemd(folders) && config.membership.path.is_dir() {
            let is_platform = |entry: &&AllowedDestination| entry.send.contains(&EgressContent::CertificateRequest);
            let platform = config.egress.allow.iter().find(is_platform).map(|entry| &entry.host.host);
            let openings = join::openings(&config, platform.filter(|_| metrics.is_some()), &[])?;
            join::write_drop_in(openings, self.membership.as_deref())?;
        }
        if has_systemd(folders) {
            let _ = std::process::Command::new("systemctl").arg("daemon-reload").status();
        }
        Ok(())
    }
}

/// True where systemd can keep secrets for the service.
fn has_systemd(folders: &BoxFolders) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    folders.is_packaged && is_root && Path::new("/run/systemd/system").is_dir()
}

/// Makes the restored box begin another audit log.
pub fn begin_audit_log(
    config: &Config,
    manifest: &BackupManifest,
    has_keys: bool,
    said: &mut Vec<String>,
) -> anyhow::Result<()> {
    let audit = &config.audit.path;
    let has_key = has_keys && audit.join("key").is_file();
    let earlier_key = (!has_key).then(|| manifest.audit_key.clone().unwrap_or_default());
    let begun = begin_after_restore(audit, earlier_key.as_deref());
    let Some(generation) = begun.with_context(|| audit.display().to_string())? else { return Ok(()) };
    if has_key {
        said.push(format!("log {generation} of the audit log begins, and names the last head in the backup"));
    } else {
        said.push(format!(
            "log {generation} of the audit log begins under a new key, and names the last head in the backup; the logs \
             before are in audit/earlier, with their verifier key"
        ));
    }
    Ok(())
}

/// Says which identity the restored box has.
pub fn tell(manifest: &BackupManifest, has_keys: bool, out: &mut Output) -> anyhow::Result<()> {
    let BackupManifest { device, platform, .. } = manifest;
    if has_keys {
        writeln!(out, "identity: that of {device}, with its private keys")?;
        writeln!(
            out,
            "the old hardware must not run any more: two boxes with one identity would contradict each other on the \
             platform"
        )?;
    } else {
        writeln!(out, "identity: a new one; the private keys of {device} are not in this backup")?;
        if let Some(platform) = platform {
            writeln!(
                out,
                "join the platform {platform} again with a new join file: there `ledge-platform box forget {device}` and \
                 `ledge-platform box add {device}`, then here `sudo ledge join FILE`"
            )?;
            writeln!(
                out,
                "the audit log has a new key, which the platform takes by `ledge-platform audit enroll {device} KEY \
                 --replace`; `sudo ledge audit key` shows it"
            )?;
        }
    }
    writeln!(out, "start the service: systemctl start ledge")?;
    Ok(())
}
