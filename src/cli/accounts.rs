//! `ledge accounts`: what callers used in a month.

use std::io::Write as _;

use anyhow::{Context as _, bail};
use clap::Args;
use ledge_base::month::Month;
use serde_json::Value;

use super::features::daemon::message;
use super::features::show::columns;
use super::server::{self, ServerArgs};
use super::{Exit, GlobalArgs, Output, block_on};

/// The arguments of `ledge accounts`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AccountsArgs {
    /// The month, such as 2026-12 [default: the present one].
    #[arg(long, value_name = "MONTH")]
    pub month: Option<Month>,
    /// Write CSV instead of text.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  ledge accounts                                        the present month
  ledge accounts --month 2026-11 --csv > november.csv   a table for a spreadsheet";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &AccountsArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let address = args.server.address(globals)?;
    let get = |path: &str| {
        let answer = block_on(server::get(&address, path))??;
        if answer.status != 200 {
            bail!("{}: {}", address.url, message(answer.status, &answer.body));
        }
        Ok(answer.body)
    };
    let month = if let Some(month) = &args.month {
        month.to_string()
    } else {
        let months: Value = serde_json::from_slice(&get("/accounts")?)?;
        let newest = months.pointer("/months/0").and_then(Value::as_str);
        newest.context("the server has no accounts")?.to_owned()
    };
    let form = if args.csv { "csv" } else { "json" };
    let body = get(&format!("/accounts?month={month}&format={form}"))?;
    if args.csv {
        out.write_all(&body)?;
        return Ok(Exit::Success);
    }
    let document: Value = serde_json::from_slice(&body)?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        return Ok(Exit::Success);
    }
    show(&document, out)?;
    Ok(Exit::Success)
}

fn show(document: &Value, out: &mut Output) -> anyhow::Result<()> {
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = |of: &Value, key: &str| of.get(key).and_then(Value::as_f64).unwrap_or_default();
    let head = ["CALLER", "MODEL", "CALLS", "FAILED", "REFUSED", "CPU S", "MB IN", "MB OUT", "WH", "COST"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let rows = document.get("rows").and_then(Value::as_array).into_iter().flatten();
    for row in rows.chain(document.get("box")).chain(document.get("total")) {
        let is_total = text(row, "caller").is_empty();
        // A topic that a caller chose could move the cursor of a terminal.
        let caller = text(row, "caller").chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        table.push(vec![
            if is_total { "total".to_owned() } else { caller },
            text(row, "model"),
            format!("{:.0}", number(row, "calls")),
            format!("{:.0}", number(row, "failed")),
            format!("{:.0}", number(row, "refused")),
            format!("{:.1}", number(row, "cpu_seconds")),
            format!("{:.1}", number(row, "bytes_in") / 1e6),
            format!("{:.1}", number(row, "bytes_out") / 1e6),
            format!("{:.2}", number(row, "watt_hours")),
            format!("{:.2} {}", number(row, "cost"), text(document, "currency")).trim_end().to_owned(),
        ]);
    }
    columns(&table, out)?;
    if document.get("estimated").and_then(Value::as_bool) == Some(true) {
        writeln!(out, "\nThe energy is an estimate from CPU time (accounts.watts_per_core).")?;
    }
    for gap in document.get("gaps").and_then(Value::as_array).into_iter().flatten() {
        writeln!(out, "Use may be missing from {} to {}.", text(gap, "from"), text(gap, "to"))?;
    }
    Ok(())
}
