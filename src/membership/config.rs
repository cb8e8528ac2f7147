//! The section `[membership]` of the configuration.

use std::path::{Path, PathBuf};

use ledge_base::secret::SecretFile;
use ledge_base::toml_check::{empty_if_none, none_if_empty};
use ledge_base::{config_path, secret};
use ledge_egress::CertificateFingerprint;
use ledge_identity::sealing::{self, EncryptionConfig, MasterKeyError, Sealer};
use serde::{Deserialize, Serialize};

use crate::folder::{self, MembershipFolder};
use crate::question::QuestionKind;

/// The platform that this box is a member of, by `ledge join`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MembershipConfig {
    /// The folder of the membership.
    pub path: PathBuf,
    /// The file with the key under which the private keys in it are encrypted; `None` encrypts nothing.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub key_file: Option<SecretFile>,
    /// The platform whose join files are taken without a question: the fingerprint of its root certificate.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub fingerprint: Option<CertificateFingerprint>,
    /// The questions of the platform that this box answers. Neither a join file nor signed settings can set it.
    pub questions: Vec<QuestionKind>,
}

impl Default for MembershipConfig {
    fn default() -> Self {
        Self { path: "membership".into(), key_file: None, fingerprint: None, questions: Vec::new() }
    }
}

impl MembershipConfig {
    pub(crate) fn make_absolute(&mut self, root: &Path) {
        config_path::resolve(&mut self.path, root);
        self.key_file.iter_mut().for_each(|file| file.resolve(root));
    }

    /// The key for its private keys.
    pub fn sealer(&self) -> Result<Sealer, MasterKeyError> {
        Sealer::load(&EncryptionConfig { master_key_file: self.key_file.clone(), old_key_files: Vec::new() })
    }

    /// Lets this process read the encrypted private keys as files of TLS. Nothing happens without a key, or when it cannot
    /// be read: who then needs one reports it.
    pub fn open_private_keys(&self) {
        if let (Some(_), Ok(sealer)) = (&self.key_file, self.sealer()) {
            let open =
                move |content: &[u8]| folder::opened(&sealer, content.to_vec()).map_err(|error| error.to_string());
            secret::decrypt_with(sealing::MAGIC, Box::new(open));
        }
    }

    /// The folder. Reads the key.
    pub fn folder(&self) -> Result<MembershipFolder, MasterKeyError> {
        Ok(MembershipFolder::new(&self.path, self.sealer()?))
    }
}
