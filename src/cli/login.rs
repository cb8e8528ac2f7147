//! `ledge login`: a code with which a person signs in at the page of this box.

use std::io::Write as _;
use std::net::IpAddr;

use clap::{Args, Subcommand};
use ledge_base::names::{KeyName, ModelName};
use ledge_identity::access::Role;
use ledge_listener::address::ListenAddress;
use ledge_listener::tls::own_addresses;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::features::daemon::DaemonClient;
use super::features::show::columns;
use super::server::CredentialArgs;
use super::{Exit, GlobalArgs, Output, block_on};
use crate::config::Config;

/// The most addresses of the page that are written.
const ADDRESSES_SHOWN_MAX: usize = 4;

/// The name of a person where none is given and the system knows none.
const PERSON_DEFAULT: &str = "owner";

/// The arguments of `ledge login`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct LoginArgs {
    /// The name of the person, which the audit log shows as a tag [default: the user who ran sudo].
    #[arg(long, value_name = "NAME")]
    pub name: Option<KeyName>,
    /// A role of the person: viewer, infer, feature-writer, operator, admin, auditor or camera-viewer. Can be repeated
    /// [default: admin].
    #[arg(long, value_name = "ROLE")]
    pub role: Vec<Role>,
    /// A model that the sign-in is for. Can be repeated [default: all models].
    #[arg(long, value_name = "NAME")]
    pub model: Vec<ModelName>,
    /// Write JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Option<LoginCommand>,
}

/// The verbs below `ledge login`.
#[derive(Debug, Subcommand)]
pub enum LoginCommand {
    /// List the people who are signed in.
    List,
    /// End a sign-in, or all of them.
    End {
        /// The id in the list, or all.
        #[arg(value_name = "ID|all")]
        session: String,
    },
}

const EXAMPLES: &str = "\
Examples:
  sudo ledge login                              a code for yourself, with the role admin
  sudo ledge login --name anna --role viewer    a code for somebody who may only look
  sudo ledge login list
  sudo ledge login end all

A code can be used once, within five minutes.";

#[derive(Deserialize)]
struct CodeAnswer {
    code: String,
    name: String,
    roles: Vec<String>,
    seconds: u64,
    idle_minutes: u64,
    hours: u64,
}

#[derive(Deserialize)]
struct SessionsAnswer {
    sessions: Vec<SessionAnswer>,
}

#[derive(Deserialize)]
struct SessionAnswer {
    id: String,
    name: String,
    age_s: u64,
    idle_s: u64,
}

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &LoginArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    let mut daemon = DaemonClient::at(CredentialArgs::default().own_daemon(globals)?);
    block_on(async {
        match &args.command {
            None => make_code(&mut daemon, &config, args, out).await?,
            Some(LoginCommand::List) => list(&mut daemon, args.json, out).await?,
            Some(LoginCommand::End { session }) => {
                // A session that does not exist has no other characters either.
                let id: String = session.chars().filter(char::is_ascii_alphanumeric).collect();
                let answer: Value = daemon.post(&format!("/sessions/{id}/end"), &json!({})).await?;
                if args.json {
                    writeln!(out, "{answer}")?;
                } else {
                    writeln!(out, "Ended: {}", answer.get("ended").unwrap_or(&Value::Null))?;
                }
            }
        }
        Ok(Exit::Success)
    })?
}

async fn make_code(
    daemon: &mut DaemonClient,
    config: &Config,
    args: &LoginArgs,
    out: &mut Output,
) -> anyhow::Result<()> {
    let answer = code(daemon, args.name.as_ref(), &args.role, &args.model).await?;
    let addresses = page_addresses(&config.http.listen, &own_addresses());
    if args.json {
        let CodeAnswer { code, name, roles, seconds, .. } = answer;
        let document = json!({ "code": code, "name": name, "roles": roles, "seconds": seconds, "pages": addresses });
        return Ok(writeln!(out, "{document:#}")?);
    }
    write(&answer, &addresses, out)
}

/// Asks the daemon for a code.
async fn code(
    daemon: &mut DaemonClient,
    name: Option<&KeyName>,
    roles: &[Role],
    models: &[ModelName],
) -> anyhow::Result<CodeAnswer> {
    let roles = if roles.is_empty() { &[Role::Admin] } else { roles };
    let mut body = Map::new();
    body.insert("name".to_owned(), json!(name.cloned().unwrap_or_else(user_name)));
    body.insert("roles".to_owned(), json!(roles));
    if !models.is_empty() {
        body.insert("models".to_owned(), json!(models));
    }
    daemon.post("/session/codes", &Value::Object(body)).await
}

/// The person at the terminal.
fn user_name() -> KeyName {
    let mut known = ["SUDO_USER", "USER"].into_iter().filter_map(|variable| std::env::var(variable).ok());
    let name = known.find_map(|name| name.parse().ok());
    name.or_else(|| PERSON_DEFAULT.parse().ok()).unwrap_or_else(|| unreachable!("the default is a name"))
}

/// Writes a code for a person: where the page is, the code, and both as a QR code.
fn write(answer: &CodeAnswer, addresses: &[String], out: &mut Output) -> anyhow::Result<()> {
    let CodeAnswer { code, name, roles, seconds, idle_minutes, hours } = answer;
    writeln!(out, "Sign in as {name} ({}) at one of these addresses:", roles.join(", "))?;
    for address in addresses.iter().take(ADDRESSES_SHOWN_MAX) {
        writeln!(out, "  {address}")?;
    }
    writeln!(out, "\nwith this code, once, within {} minutes:\n\n    {code}\n", seconds / 60)?;
    if let Some(address) = addresses.iter().find(|address| address.starts_with("https://")) {
        // The fragment stays in the browser: it is in no request and in no log.
        let text = format!("{address}/#sign-in={}", code.replace('-', ""));
        let image = QrCode::new(text)?.render::<Dense1x2>().quiet_zone(true).build();
        writeln!(out, "{image}\n")?;
    }
    writeln!(out, "The sign-in ends after {idle_minutes} minutes without use, and after {hours} hours.")?;
    Ok(())
}

/// The addresses at which the page of this box is, those for other machines first.
fn page_addresses(listen: &[ListenAddress], own: &[IpAddr]) -> Vec<String> {
    let mut remote = Vec::new();
    let mut local = Vec::new();
    for address in listen {
        let (scheme, at) = match address {
            ListenAddress::Tls(at) => ("https", at),
            ListenAddress::Tcp(at) => ("http", at),
            ListenAddress::Unix(_) => continue,
        };
        let hosts = if at.ip().is_unspecified() { own } else { &[at.ip()] };
        for host in hosts.iter().filter(|host| at.is_ipv6() || host.is_ipv4()) {
            let page = format!("{scheme}://{}", std::net::SocketAddr::new(*host, at.port()));
            if host.is_loopback() { local.push(page) } else { remote.push(page) }
        }
    }
    remote.append(&mut local);
    remote
}

async fn list(daemon: &mut DaemonClient, is_json: bool, out: &mut Output) -> anyhow::Result<()> {
    if is_json {
        let answer: Value = daemon.get("/sessions").await?;
        return Ok(writeln!(out, "{answer:#}")?);
    }
    let SessionsAnswer { sessions } = daemon.get("/sessions").await?;
    if sessions.is_empty() {
        return Ok(writeln!(out, "Nobody is signed in.")?);
    }
    let mut rows = vec![["ID", "NAME", "SIGNED IN", "LAST USE"].map(str::to_owned).to_vec()];
    let ago = |seconds: u64| format!("{} min ago", seconds / 60);
    rows.extend(sessions.into_iter().map(|one| vec![one.id, one.name, ago(one.age_s), ago(one.idle_s)]));
    Ok(columns(&rows, out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_at_the_addresses_that_others_reach_and_then_on_the_box() {
        let listen: Vec<ListenAddress> = ["127.0.0.1:8000", "unix:a.sock", "https://0.0.0.0:8443", "https://[::]:9443"]
            .map(|text| text.parse().unwrap())
            .into();
        let own = ["192.168.1.20", "127.0.0.1", "fd00::7"].map(|text| text.parse().unwrap());
        let pages = page_addresses(&listen, &own);
        assert_eq!(pages[..3], ["https://192.168.1.20:8443", "https://192.168.1.20:9443", "https://[fd00::7]:9443"]);
        assert_eq!(pages[3..], ["http://127.0.0.1:8000", "https://127.0.0.1:8443", "https://127.0.0.1:9443"]);
    }
}
