//! `ledge config`

use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::str::FromStr;

use clap::{Args, Subcommand};
use ledge_base::toml_check::Mistake;
use ledge_egress::ip_filter::{self, FilterRule};
use ledge_http::config::ListenAddress;

use super::{BadConfiguration, Exit, Globals, Output};
use crate::config::{Config, Verdict};

/// The arguments of `ledge config`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say "ok", or every mistake with its file and line and exit code 78. Nothing is started.
    ///
    /// A setting that is right and of no use, such as a user in access.users who has left or a model that is not there yet, is
    /// a warning on standard error. The check includes the feature views, each *.toml in the folder features.views with
    /// what the store has of them, and compares each of mqtt.bindings with its feature views and its model.
    Check {
        /// Write JSON instead of text: {"ok": false, "mistakes": [...], "warnings": [...]}.
        #[arg(long)]
        json: bool,
    },
    /// Write the network part of the systemd unit that fits the configuration: a drop-in with IPAddressAllow= lines.
    ///
    /// The unit lets nothing through but this machine. This adds the destinations of [[egress.allow]], with the addresses that
    /// their names have now, and the name servers where there are names; and the networks of --clients, from which others may
    /// connect to what http.listen offers to the network. systemd knows addresses and no ports: what may be sent where stays for
    /// the allow-list itself to say. Make it anew when the configuration or an address changes.
    SystemdDropIn {
        /// A network from which others may connect, such as 192.168.1.0/24 or 2001:db8::/32; any is every address. Can be
        /// repeated. Needed when http.listen has an address that others reach.
        #[arg(long, value_name = "NETWORK")]
        clients: Vec<Network>,
    },
    /// Show every setting in effect, and where those that are no defaults were set.
    Show {
        /// Write JSON instead of TOML.
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "\
Examples:
  ledge config check --config new.toml      before it replaces /etc/ledge/ledge.toml
  ledge config show --root .ledge
  ledge config systemd-drop-in > /etc/systemd/system/ledge.service.d/network.conf";

/// Addresses that begin alike, as `IPAddressAllow=` takes them: `ADDRESS`, `ADDRESS/BITS`, or `any`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network(String);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let most = address.parse().map(|address: IpAddr| if address.is_ipv4() { 32 } else { 128 });
        let fits = match (most, bits) {
            (Ok(_), None) => true,
            (Ok(most), Some(bits)) => bits.parse().is_ok_and(|bits: u8| bits <= most),
            (Err(_), _) => text == "any",
        };
        if fits {
            return Ok(Self(text.to_owned()));
        }
        Err("expected ADDRESS/BITS, such as 192.168.1.0/24, or an address, or any".to_owned())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Runs the verb.
pub fn run(globals: &Globals, args: &ConfigArgs, out: &mut Output) -> anyhow::Result<Exit> {
    match &args.command {
        ConfigCommand::Check { json } => check(globals, *json, out),
        ConfigCommand::SystemdDropIn { clients } => {
            let resolver = std::fs::read_to_string(ip_filter::RESOLV_CONF).unwrap_or_default();
            write!(out, "{}", drop_in(&globals.load_config()?, clients, &resolver)?)?;
            Ok(Exit::Success)
        }
        ConfigCommand::Show { json } => show(globals, *json, out),
    }
}

fn check(globals: &Globals, json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let Verdict { mistakes, warnings } = globals.sources().check();
    if json {
        let places = |told: &[Mistake]| told.iter().map(to_json).collect::<Vec<_>>();
        let report = serde_json::json!({
            "ok": mistakes.is_empty(),
            "mistakes": places(&mistakes),
            "warnings": places(&warnings),
        });
        writeln!(out, "{report:#}")?;
        return Ok(if mistakes.is_empty() { Exit::Success } else { Exit::Configuration });
    }
    for warning in warnings {
        // Standard output stays what a script expects.
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
    if !mistakes.is_empty() {
        return Err(BadConfiguration(mistakes).into());
    }
    writeln!(out, "ok")?;
    Ok(Exit::Success)
}

fn to_json(mistake: &Mistake) -> serde_json::Value {
    let Mistake { source, line, column, key, message } = mistake;
    serde_json::json!({ "source": source, "line": line, "column": column, "key": key, "message": message })
}

fn show(globals: &Globals, json: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let loaded = globals.load()?;
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&loaded.config)?)?;
    } else {
        write!(out, "{}", loaded.to_toml()?)?;
    }
    Ok(Exit::Success)
}

/// Where others than this machine may connect.
pub(super) fn open(config: &Config) -> Vec<String> {
    let is_open = |address: &&ListenAddress| match address {
        ListenAddress::Tcp(tcp) | ListenAddress::Tls(tcp) => !tcp.ip().to_canonical().is_loopback(),
        ListenAddress::Unix(_) => false,
    };
    config.http.listen.iter().filter(is_open).map(ToString::to_string).collect()
}

/// The drop-in for a configuration; `resolver` is the text of [`ip_filter::RESOLV_CONF`].
fn drop_in(config: &Config, clients: &[Network], resolver: &str) -> anyhow::Result<String> {
    let mut problems = Vec::new();
    let open = open(config);
    match (open.is_empty(), clients.is_empty()) {
        (false, true) => problems.push(format!(
            "http.listen has {}, and whoever connects there is stopped: say from where, with --clients 192.168.1.0/24 or \
             --clients any",
            open.join(", ")
        )),
        (true, false) => problems.push("--clients is for nobody: http.listen has no address that others reach".to_owned()),
        _ => {}
    }
    let passed = ip_filter::rules(&config.egress, &config.behind_proxies(), resolver).unwrap_or_else(|names| {
        problems.extend(names.into_iter().map(|name| format!("{name}, so that no line can be made of egress.allow")));
        Vec::new()
    });
    anyhow::ensure!(problems.is_empty(), "there is no drop-in for this configuration:\n  {}", problems.join("\n  "));
    let mut lines = vec![
        "# Made by `ledge config systemd-drop-in`. Make it anew when the configuration or an address changes."
            .to_owned(),
        "[Service]".to_owned(),
    ];
    if !open.is_empty() {
        lines.push(format!("# Who may connect to {}", open.join(", ")));
        lines.extend(clients.iter().map(|network| format!("IPAddressAllow={network}")));
    }
    for FilterRule { what, addresses } in &passed {
        lines.push(format!("# {what}"));
        lines.extend(addresses.iter().map(|address| format!("IPAddressAllow={address}")));
    }
    if open.is_empty() && passed.is_empty() {
        lines.push("# The configuration asks for nothing beyond this machine.".to_owned());
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::toml_check;

    fn config(text: &str) -> Config {
        toml_check::parse("f", text).unwrap()
    }

    fn networks(texts: &[&str]) -> Vec<Network> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_network_is_an_address_with_or_without_bits_or_any() {
        for good in ["any", "192.168.1.0/24", "192.168.1.7", "2001:db8::/32", "::/0", "10.0.0.0/32"] {
            assert!(good.parse::<Network>().is_ok(), "{good}");
        }
        for bad in
            ["", "all", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "any/8", "10.0.0.1\nIPAddressAllow=any"]
        {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_configuration_that_stays_on_this_machine_needs_no_line() {
        let text = drop_in(&config(""), &[], "nameserver 192.0.2.53").unwrap();
        assert!(
            text.contains("[Service]\n# The configuration asks for nothing") && !text.contains("IPAddressAllow="),
            "{text}"
        );
        assert!(drop_in(&config(""), &networks(&["any"]), "").unwrap_err().to_string().contains("is for nobody"));
    }

    #[test]
    fn what_lies_behind_a_proxy_needs_no_address_unless_something_goes_there_without_it() {
        let updates = "[updates]\nrepository = 'https://gone.invalid:443/r'\nproxy = '192.0.2.3:3128'\n";
        let allow = "[[egress.allow]]\nhost = 'gone.invalid:443'\nregion = 'eu'\n[[egress.allow]]\nhost = '192.0.2.3:3128'\n\
                     region = 'eu'\n";
        let text = drop_in(&config(&format!("{updates}{allow}")), &[], "").unwrap();
        let lines =
            "# gone.invalid:443, in eu: through 192.0.2.3:3128\n# 192.0.2.3:3128, in eu\nIPAddressAllow=192.0.2.3\n";
        assert!(text.ends_with(lines), "{text}");
        let direct = "[audit.syslog]\nto = 'gone.invalid:443'\n";
        let refused = drop_in(&config(&format!("{updates}{direct}{allow}")), &[], "").unwrap_err().to_string();
        assert!(refused.contains("gone.invalid has no address"), "{refused}");
    }

    #[test]
    fn clients_and_destinations_are_let_through_and_nobody_else() {
        let config = config(
            "[http]\nlisten = ['127.0.0.1:1', '0.0.0.0:8443']\n[[egress.allow]]\nhost = '192.0.2.4:8883'\nregion = 'eu'",
        );
        let text = drop_in(&config, &networks(&["192.168.1.0/24", "2001:db8::/32"]), "").unwrap();
        let (_, lines) = text.split_once("[Service]\n").unwrap();
        assert_eq!(
            lines,
            "# Who may connect to 0.0.0.0:8443\nIPAddressAllow=192.168.1.0/24\nIPAddressAllow=2001:db8::/32\n\
             # 192.0.2.4:8883, in eu\nIPAddressAllow=192.0.2.4\n"
        );
        let refused = drop_in(&config, &[], "").unwrap_err().to_string();
        assert!(refused.contains("http.listen has 0.0.0.0:8443"), "{refused}");
    }
}
