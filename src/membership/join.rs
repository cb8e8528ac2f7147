//! Joining: a verified join file becomes a membership.

use std::io;
use std::path::Path;

use ledge_base::durable;
use ledge_base::names::DeviceName;

use crate::config::MembershipConfig;
use crate::folder::{FolderError, Membership, MembershipFolder, Standing};
use crate::join_file::JoinFile;
use crate::settings::{self, SettingsError};
use ledge_identity::sealing::{MasterKeyError, Sealer};

/// The credential of the service with the key for its private keys.
pub const MEMBERSHIP_CREDENTIAL: &str = "ledge-membership";

/// The reason why a box does not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Key(#[from] MasterKeyError),
    #[error("the join file cannot be used: {0}")]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("this box is a member of {platform} as {device} already: `--replace` leaves that platform for another")]
    Member { platform: String, device: DeviceName },
}

/// A membership that is written, and not in effect yet: the folder has another name.
#[derive(Debug)]
pub struct PreparedMembership {
    scratch: std::path::PathBuf,
    path: std::path::PathBuf,
}

impl PreparedMembership {
    /// Writes the membership of a box that is called `device` next to its place. `key` is the new key of
    /// [`MEMBERSHIP_CREDENTIAL`], where systemd holds one.
    pub fn write(
        config: &MembershipConfig,
        file: &JoinFile,
        device: &DeviceName,
        replaces: bool,
        key: Option<Sealer>,
        is_settable: impl Fn(&str) -> bool,
    ) -> Result<Self, JoinError> {
        if !replaces && let Some(Membership { platform, device, .. }) = config.folder()?.membership()? {
            return Err(JoinError::Member { platform, device });
        }
        let place = MembershipFolder::new(&config.path, Sealer::none());
        let invitation = &file.invitation;
        let settings = settings::compose(invitation, device, &place, key.is_some(), is_settable)?;
        let sealer = match key {
            Some(key) => key,
            None => config.sealer()?,
        };
        let membership = Membership {
            version: 1,
            platform: invitation.platform.clone(),
            device: device.clone(),
            join: invitation.join.clone(),
            fingerprint: file.fingerprint.clone(),
            standing: Standing::Joining { invitation: Box::new(invitation.clone()), join_file: file.sha256.clone() },
        };
        let scratch = config.path.with_extension("new");
        remove(&scratch)?;
        MembershipFolder::new(&scratch, sealer).create(&membership, invitation, &settings)?;
        Ok(Self { scratch, path: config.path.clone() })
    }

    /// The folder, for a check of the configuration with it.
    pub fn folder(&self) -> &Path {
        &self.scratch
    }

    /// Removes it again.
    pub fn discard(self) -> Result<(), JoinError> {
        Ok(remove(&self.scratch)?)
    }

    /// Puts it into effect. The folder of a membership that it replaces stays under another name.
    pub fn commit(self) -> Result<(), JoinError> {
        let failed = |error| FolderError::File { path: self.path.clone(), error };
        let before = self.path.with_extension("before");
        if self.path.exists() {
            remove(&before)?;
            match durable::exchange(&self.scratch, &self.path) {
                Ok(()) => return Ok(durable::rename(&self.scratch, &before).map_err(failed)?),
                // Not on this file system.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    durable::rename(&self.path, &before).map_err(failed)?;
                }
                Err(error) => return Err(failed(error).into()),
            }
        }
        durable::rename(&self.scratch, &self.path).map_err(failed)?;
        Ok(())
    }
}

fn remove(folder: &Path) -> Result<(), FolderError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FolderError::File { path: folder.to_owned(), error })
        }
        _ => Ok(()),
    }
}
