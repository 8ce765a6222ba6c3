//! The live view: a table that fills the terminal, until somebody has seen enough.

use super::rates::{Reading, Sample};
use super::{Order, View, table};
use crate::host::inquiry::Inquiry;
use crate::host::stop::StopSignals;
use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::text::Text;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use std::time::Duration;
use tokio::sync::mpsc;

/// Keys that were pressed and not looked at yet; more of them wait.
const KEYS_MAX: usize = 16;

/// What is shown.
struct Screen {
    view: View,
    order: Order,
    sample: Option<Sample>,
    /// Why there is no newer sample.
    trouble: Option<String>,
}

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    End,
    Show,
    Nothing,
}

/// Shows samples until `q`, Ctrl-C or a signal. The terminal is as before afterwards, after a panic too.
pub async fn run(inquiry: &Inquiry, view: View, interval: Duration) -> anyhow::Result<()> {
    let mut stop = StopSignals::install()?;
    let mut keys = read_keys();
    let mut screen = Screen { view, order: Order::Operations, sample: None, trouble: None };
    // It installs a hook that gives the terminal back before a panic is told.
    let mut terminal = ratatui::try_init().context("cannot take the terminal over")?;
    let outcome = tokio::select! {
        outcome = screen.show(&mut terminal, inquiry, interval, &mut keys) => outcome,
        () = stop.wait() => Ok(()),
    };
    ratatui::try_restore().context("cannot give the terminal back; `reset` does")?;
    outcome
}

/// Reads keys on a thread of its own, which ends with the process: reading them blocks.
fn read_keys() -> mpsc::Receiver<Event> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    keys
}

impl Screen {
    async fn show(
        &mut self,
        terminal: &mut DefaultTerminal,
        inquiry: &Inquiry,
        interval: Duration,
        keys: &mut mpsc::Receiver<Event>,
    ) -> anyhow::Result<()> {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut before: Option<Reading> = None;
        loop {
            terminal.draw(|frame| self.draw(frame)).context("cannot draw")?;
            tokio::select! {
                _ = ticks.tick() => {
                    let known = before.as_ref().map(|before| before.clients.clone()).unwrap_or_default();
                    match Reading::take(inquiry, &known).await {
                        Ok(now) => {
                            self.sample = before.as_ref().map(|before| Sample::between(before, &now));
                            self.trouble = None;
                            before = Some(now);
                        }
                        Err(error) => self.trouble = Some(format!("{error:#}")),
                    }
                }
                event = keys.recv() => {
                    let Some(event) = event else { return Ok(()) };
                    if self.heed(&event) == Wish::End {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn heed(&mut self, event: &Event) -> Wish {
        let Event::Key(key) = event else { return Wish::Show };
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::End,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Wish::End,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Tab => {
                let at = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
                self.view = View::ALL[(at + 1) % View::ALL.len()];
            }
            KeyCode::Char(digit @ '1'..='4') => self.view = View::ALL[digit as usize - '1' as usize],
            _ => return Wish::Nothing,
        }
        Wish::Show
    }

    fn draw(&self, frame: &mut ratatui::Frame<'_>) {
        let mut above =
            self.sample.as_ref().map_or("the first figures are coming".to_owned(), table::summary);
        if let Some(trouble) = &self.trouble {
            above.push_str(&format!("\nnot current: {trouble}"));
        }
        let above = Text::from(above);
        let height = u16::try_from(above.height()).unwrap_or(u16::MAX);
        let areas =
            Layout::vertical([Constraint::Length(height + 1), Constraint::Min(1), Constraint::Length(1)])
                .split(frame.area());
        frame.render_widget(Paragraph::new(above), areas[0]);
        if let Some(sample) = &self.sample {
            frame.render_widget(self.table(sample), areas[1]);
        }
        let keys = format!(
            "{} by {}   Tab or 1-4: OSDs, pools, volumes, clients   s: order   q: end",
            self.view.name(),
            self.order.name()
        );
        frame.render_widget(Paragraph::new(keys.reversed()), areas[2]);
    }

    fn table(&self, sample: &Sample) -> Table<'static> {
        let headings = table::headings(self.view);
        let rows = table::rows(sample, self.view, self.order);
        let is_right = |column: usize| headings[column].starts_with('>');
        let names: Vec<String> =
            headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        let widths: Vec<Constraint> = (0..headings.len())
            .map(|column| {
                let cells = rows.iter().chain([&names]).map(|row| row[column].chars().count());
                Constraint::Length(u16::try_from(cells.max().unwrap_or(0)).unwrap_or(u16::MAX))
            })
            .collect();
        let row = |cells: Vec<String>| {
            Row::new(cells.into_iter().enumerate().map(|(column, cell)| {
                let side = if is_right(column) { Alignment::Right } else { Alignment::Left };
                Cell::from(Text::from(cell).alignment(side))
            }))
        };
        let body: Vec<Row<'static>> = rows.into_iter().map(row).collect();
        Table::new(body, widths).header(row(names).bold()).column_spacing(2)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::Reading;
    use super::*;
    use health::codes::Level;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;
    use std::collections::BTreeMap;

    fn screen() -> Screen {
        let reading = Reading {
            at: std::time::Instant::now(),
            nodes: vec![],
            silent: vec!["node.1 (pid 7): no answer".into()],
            map: std::sync::Arc::default(),
            clients: BTreeMap::new(),
            level: Level::Warning,
            recovery_objects_left: 3,
            recovery_bytes_left: 4096,
        };
        let sample = Some(Sample::between(&reading, &reading));
        Screen { view: View::Osd, order: Order::Operations, sample, trouble: None }
    }

    #[test]
    fn keys_change_the_view_and_the_order_and_end_it() {
        let mut screen = screen();
        let mut press = |code, modifiers| {
            let wish = screen.heed(&Event::Key(KeyEvent::new(code, modifiers)));
            (wish, screen.view, screen.order)
        };
        let none = KeyModifiers::NONE;
        assert_eq!(press(KeyCode::Tab, none), (Wish::Show, View::Pool, Order::Operations));
        assert_eq!(press(KeyCode::Char('4'), none), (Wish::Show, View::Client, Order::Operations));
        assert_eq!(press(KeyCode::Tab, none), (Wish::Show, View::Osd, Order::Operations));
        assert_eq!(press(KeyCode::Char('s'), none), (Wish::Show, View::Osd, Order::Bytes));
        assert_eq!(press(KeyCode::Char('x'), none).0, Wish::Nothing);
        assert_eq!(press(KeyCode::Char('q'), none).0, Wish::End);
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL).0, Wish::End);
    }

    #[test]
    fn it_shows_figures_keys_and_who_did_not_answer() {
        let mut terminal = Terminal::new(TestBackend::new(120, 12)).unwrap();
        terminal.draw(|frame| screen().draw(frame)).unwrap();
        let text = terminal.backend().to_string();
        for expected in
            ["health warning", "3 objects left", "node.1 (pid 7): no answer", "READ/s", "total", "q: end"]
        {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
    }
}
