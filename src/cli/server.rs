//! The options for a connection to the server of `--url`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use ledge_base::secret::SecretFile;
use ledge_egress::DaemonAddress;
use ledge_identity::api_key::ApiKey;

/// The credentials of a connection: the authorities of the server, and the API key of this caller.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArgs {
    /// The certificate authorities to trust for an https:// server, as PEM [default: those that this machine trusts].
    ///
    /// For a box with a self-signed certificate: a copy of the file tls/self-signed.pem in its state folder.
    #[arg(long, value_name = "FILE", global = true)]
    pub ca_file: Option<PathBuf>,
    /// The file with the API key to send, as "ledge keys create" wrote it. Over http:// it is sent to this machine
    /// only.
    #[arg(long, value_name = "FILE", global = true, env = "LEDGE_KEY_FILE")]
    pub key_file: Option<PathBuf>,
}

impl ServerArgs {
    /// The server at `url`, with these credentials.
    pub fn at(&self, url: &str) -> anyhow::Result<DaemonAddress> {
        let mut address = DaemonAddress::from(url);
        address.ca = self.ca_file.clone().map(SecretFile::Path);
        if let Some(file) = &self.key_file {
            let text = SecretFile::Path(file.clone()).read_text()?;
            let key = ApiKey::parse(text.trim().as_bytes());
            let key = key.with_context(|| {
                format!("{} contains no API key: expected one line, as `ledge keys create` writes it", file.display())
            })?;
            address = address.with_key(&key.reveal());
        }
        Ok(address)
    }
}
