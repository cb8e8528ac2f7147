//! How a verb comes to a server that is named with `--url`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use ledge_base::secret::SecretFile;
use ledge_egress::DaemonAddress;
use ledge_identity::api_key::ApiKey;

/// How a server is recognized, and how it recognizes this caller.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArgs {
    /// The authorities that may have signed the certificate of an https:// server, as PEM [default: those that this machine
    /// trusts].
    ///
    /// Of a box that signed its certificate itself: a copy of the file tls/self-signed.pem in its state folder.
    #[arg(long, value_name = "FILE", global = true)]
    pub ca_file: Option<PathBuf>,
    /// A file with the API key to ask with, as "ledge keys create" wrote it. Over http:// it goes to this machine only.
    #[arg(long, value_name = "FILE", global = true, env = "LEDGE_KEY_FILE")]
    pub key_file: Option<PathBuf>,
}

impl ServerArgs {
    /// The server at `url`, to be asked with these.
    pub fn at(&self, url: &str) -> anyhow::Result<DaemonAddress> {
        let mut address = DaemonAddress::from(url);
        address.ca = self.ca_file.clone().map(SecretFile::Path);
        if let Some(file) = &self.key_file {
            let text = SecretFile::Path(file.clone()).read_text()?;
            let key = ApiKey::parse(text.trim().as_bytes());
            let key = key.with_context(|| format!("{} holds no API key", file.display()))?;
            address = address.with_key(&key.reveal());
        }
        Ok(address)
    }
}
