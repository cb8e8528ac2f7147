//! The options for a connection to the server of `--url`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use ledge_base::secret::SecretFile;
use ledge_egress::{DaemonAddress, DaemonAnswer, DaemonConnection};
use ledge_identity::api_key::ApiKey;
use ledge_listener::address::ListenAddress;

use super::GlobalArgs;

/// A server to call, and the credentials of the connection.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArgs {
    /// The server to call, for example http://127.0.0.1:8000 or unix:.ledge/ledge.sock [default: the Unix socket of
    /// the configuration, or its first address].
    #[arg(long, global = true)]
    pub url: Option<String>,
    #[command(flatten)]
    pub credentials: CredentialArgs,
}

impl ServerArgs {
    /// The server, with these credentials.
    pub fn address(&self, globals: &GlobalArgs) -> anyhow::Result<DaemonAddress> {
        match &self.url {
            Some(url) => self.credentials.at(url),
            None => self.credentials.own_daemon(globals),
        }
    }
}

/// The credentials of a connection: the authorities of the server, and the API key of this caller.
#[derive(Debug, Clone, Default, Args)]
pub struct CredentialArgs {
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

impl CredentialArgs {
    /// The daemon of this configuration, with these credentials.
    pub fn own_daemon(&self, globals: &GlobalArgs) -> anyhow::Result<DaemonAddress> {
        self.at(&own_daemon(&globals.load_config()?.http.listen).context("name the server with --url")?)
    }

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

/// The longest time of an answer that the daemon has at hand.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks a daemon over a new connection: one that was kept would have to be given up with the daemon.
pub(super) async fn get(address: &DaemonAddress, path: &str) -> anyhow::Result<DaemonAnswer> {
    let asked = async { DaemonConnection::open(address).await?.get(path).await };
    let late = || format!("{} did not answer within {} s", address.url, ANSWER_TIMEOUT.as_secs());
    Ok(tokio::time::timeout(ANSWER_TIMEOUT, asked).await.with_context(late)??)
}

/// The address of the daemon with this configuration: its Unix socket if this user may open it, as the socket
/// identifies the user. Otherwise the first address with a fixed port.
pub(super) fn own_daemon(listen: &[ListenAddress]) -> anyhow::Result<String> {
    let is_open = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    let url = |address: &ListenAddress| match address {
        // Port 0 means any free port, which only the daemon knows.
        ListenAddress::Tcp(address) if address.port() == 0 => None,
        ListenAddress::Tcp(address) if address.ip().is_unspecified() => {
            let loopback = if address.is_ipv4() { "127.0.0.1" } else { "[::1]" };
            Some(format!("http://{loopback}:{}", address.port()))
        }
        ListenAddress::Tcp(address) => Some(format!("http://{address}")),
        // A certificate is rarely valid for a loopback address.
        ListenAddress::Tls(_) => None,
        ListenAddress::Unix(_) => Some(address.to_string()),
    };
    let socket = listen.iter().find(|address| matches!(address, ListenAddress::Unix(path) if is_open(path)));
    let url = socket.into_iter().chain(listen).find_map(url);
    url.context("http.listen has no Unix socket and no http:// address with a fixed port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_daemon_is_behind_its_socket_or_at_the_first_address_with_a_fixed_port() {
        let url = |listen: &[&str]| {
            let listen: Vec<_> = listen.iter().map(|text| text.parse().unwrap()).collect();
            own_daemon(&listen).ok()
        };
        assert_eq!(url(&["127.0.0.1:8000", "unix:a.sock"]).as_deref(), Some("http://127.0.0.1:8000"));
        assert_eq!(url(&["127.0.0.1:0", "unix:a.sock"]).as_deref(), Some("unix:a.sock"));
        let folder = tempfile::tempdir().unwrap();
        let socket = format!("unix:{}", folder.path().display());
        assert_eq!(url(&["127.0.0.1:8000", &socket]).as_deref(), Some(&*socket));
        assert_eq!(url(&["0.0.0.0:80"]).as_deref(), Some("http://127.0.0.1:80"));
        assert_eq!(url(&["[::]:80"]).as_deref(), Some("http://[::1]:80"));
        assert_eq!(url(&["127.0.0.1:0"]), None);
    }
}
