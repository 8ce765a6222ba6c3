//! Writes SVG: elements, escaped text, short numbers and paths, and how wide a text will be.
//!
//! Nothing here has an id, so that any number of pictures share one page.

/// The width of every picture in its own units. The style shows them at up to 600 CSS pixels, and at a
/// phone's 340 pixels enlarges the text; room is reserved for that larger text.
pub(super) const WIDTH: f64 = 520.0;

/// The size of text on a phone, in units of the picture. Room is reserved for it.
pub(super) const TEXT_SIZE_MAX: f64 = 15.0;

/// The size of a title on a phone, in units of the picture.
pub(super) const TITLE_SIZE_MAX: f64 = 16.0;

/// Bold text is wider by this factor.
pub(super) const BOLD_WIDENS: f64 = 1.06;

/// The colours a picture tells apart; further series repeat them with other dashes.
pub(super) const COLOUR_COUNT: usize = 7;

/// Where a text is held.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture as it is written.
pub(super) struct Svg {
    body: String,
}

impl Svg {
    pub(super) fn new() -> Self {
        Self { body: String::with_capacity(8 * 1024) }
    }

    /// Ready-made markup.
    pub(super) fn raw(&mut self, markup: &str) {
        self.body.push_str(markup);
    }

    pub(super) fn open_group(&mut self, class: &str) {
        self.raw(&format!("<g class=\"{class}\">"));
    }

    pub(super) fn close_group(&mut self) {
        self.raw("</g>");
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(number);
        self.raw(&format!("<path class=\"{class}\" d=\"M{x1} {y1}L{x2} {y2}\"/>"));
    }

    pub(super) fn path(&mut self, class: &str, path: &Path) {
        if !path.is_empty() {
            self.raw(&format!("<path class=\"{class}\" d=\"{}\"/>", path.text));
        }
    }

    /// A path that tells more under the pointer.
    pub(super) fn path_with_tip(&mut self, class: &str, path: &Path, tip: &str) {
        self.raw(&format!(
            "<path class=\"{class}\" d=\"{}\"><title>{}</title></path>",
            path.text,
            escape(tip)
        ));
    }

    pub(super) fn text(&mut self, class: &str, anchor: Anchor, at: (f64, f64), text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let (x, y) = (number(at.0), number(at.1));
        self.raw(&format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}>{}</text>", escape(text)));
    }

    /// A title over the picture, at most two lines of it. Gives the height it takes.
    pub(super) fn heading(&mut self, title: &str) -> f64 {
        let lines = wrap_evenly(title, WIDTH - 8.0, TITLE_SIZE_MAX * BOLD_WIDENS, 2);
        for (index, line) in lines.iter().enumerate() {
            self.text("plot-title", Anchor::Start, (2.0, 17.0 + 20.0 * index as f64), line);
        }
        20.0 * lines.len() as f64 + 4.0
    }

    /// The whole picture. `description` tells in words what is seen.
    pub(super) fn finish(self, height: f64, title: &str, description: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" \
             viewBox=\"0 0 {} {}\"><title>{}</title><desc>{}</desc>{}</svg>\n",
            number(WIDTH),
            number(height),
            escape(&shorten_to(title, 200)),
            escape(&shorten_to(description, 2_000)),
            self.body
        )
    }
}

/// A path in tenths of a unit, written with relative steps: half the size of absolute ones.
#[derive(Default)]
pub(super) struct Path {
    text: String,
    /// In tenths. Where the pen is, and where the subpath began.
    pen: (i64, i64),
    start: (i64, i64),
    /// A step that may still grow if the next one continues it: a straight line needs no points within.
    pending: Option<(i64, i64)>,
}

impl Path {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn move_to(&mut self, x: f64, y: f64) {
        self.flush();
        let step = (tenths(x) - self.pen.0, tenths(y) - self.pen.1);
        self.pen = (tenths(x), tenths(y));
        self.start = self.pen;
        let (absolute, relative) = (pair(self.pen), pair(step));
        // A path begins absolute: from the origin, both are equally long.
        match absolute.len() <= relative.len() {
            true => self.text.push_str(&format!("M{absolute}")),
            false => self.text.push_str(&format!("m{relative}")),
        }
    }

    pub(super) fn line_to(&mut self, x: f64, y: f64) {
        let end = self.pending.map_or(self.pen, |step| (self.pen.0 + step.0, self.pen.1 + step.1));
        let step = (tenths(x) - end.0, tenths(y) - end.1);
        match self.pending {
            _ if step == (0, 0) => {}
            Some(so_far) if continues(so_far, step) => {
                self.pending = Some((so_far.0 + step.0, so_far.1 + step.1))
            }
            _ => {
                self.flush();
                self.pending = Some(step);
            }
        }
    }

    /// A round dot where the pen is, as wide as the stroke.
    pub(super) fn dot(&mut self) {
        self.text.push_str("h0");
    }

    pub(super) fn close(&mut self) {
        self.flush();
        self.text.push('z');
        self.pen = self.start;
    }

    /// Ends the path.
    pub(super) fn finish(mut self) -> Self {
        self.flush();
        self
    }

    /// A rectangle; one without area draws nothing.
    pub(super) fn rectangle(x: f64, y: f64, width: f64, height: f64) -> Self {
        let mut path = Self::default();
        path.move_to(x, y);
        path.line_to(x + width, y);
        path.line_to(x + width, y + height);
        path.line_to(x, y + height);
        path.close();
        path
    }

    /// One of the marker shapes, about `radius` in size: circle, square, triangle, diamond, and these upside
    /// down or crossed, so that series differ without their colour.
    pub(super) fn marker(series: usize, x: f64, y: f64, radius: f64) -> Self {
        let mut path = Self::default();
        let corners: &[(f64, f64)] = match series % COLOUR_COUNT {
            0 => {
                path.move_to(x - radius, y);
                let (r, d) = (number(radius), number(2.0 * radius));
                path.text.push_str(&format!("a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0-{d} 0z"));
                return path;
            }
            1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            2 => &[(0.0, -1.2), (1.15, 0.85), (-1.15, 0.85)],
            3 => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
            4 => &[(0.0, 1.2), (1.15, -0.85), (-1.15, -0.85)],
            5 => &[
                (-0.4, -1.2),
                (0.4, -1.2),
                (0.4, -0.4),
                (1.2, -0.4),
                (1.2, 0.4),
                (0.4, 0.4),
                (0.4, 1.2),
                (-0.4, 1.2),
                (-0.4, 0.4),
                (-1.2, 0.4),
                (-1.2, -0.4),
                (-0.4, -0.4),
            ],
            _ => &[(-1.0, 0.0), (-0.5, -1.1), (0.5, -1.1), (1.0, 0.0), (0.5, 1.1), (-0.5, 1.1)],
        };
        path.move_to(x + corners[0].0 * radius, y + corners[0].1 * radius);
        for corner in &corners[1..] {
            path.line_to(x + corner.0 * radius, y + corner.1 * radius);
        }
        path.close();
        path
    }

    fn flush(&mut self) {
        if let Some(step) = self.pending.take() {
            self.pen = (self.pen.0 + step.0, self.pen.1 + step.1);
            match step {
                (across, 0) => self.text.push_str(&format!("h{}", tenths_text(across))),
                (0, down) => self.text.push_str(&format!("v{}", tenths_text(down))),
                _ => self.text.push_str(&format!("l{}", pair(step))),
            }
        }
    }
}

fn pair((x, y): (i64, i64)) -> String {
    let blank = if y < 0 { "" } else { " " };
    format!("{}{blank}{}", tenths_text(x), tenths_text(y))
}

fn continues(so_far: (i64, i64), step: (i64, i64)) -> bool {
    let cross = so_far.0 * step.1 - so_far.1 * step.0;
    let along = so_far.0 * step.0 + so_far.1 * step.1;
    cross == 0 && along > 0
}

/// Pictures are at most some thousand units large; the clamp keeps the arithmetic of steps within bounds.
fn tenths(value: f64) -> i64 {
    (value.clamp(-1e6, 1e6) * 10.0).round() as i64
}

fn tenths_text(tenths: i64) -> String {
    let sign = if tenths < 0 { "-" } else { "" };
    let (whole, fraction) = (tenths.abs() / 10, tenths.abs() % 10);
    match (whole, fraction) {
        (_, 0) => format!("{sign}{whole}"),
        (0, _) => format!("{sign}.{fraction}"),
        _ => format!("{sign}{whole}.{fraction}"),
    }
}

/// A coordinate with at most one decimal.
pub(super) fn number(value: f64) -> String {
    tenths_text(tenths(value))
}

/// Text as SVG and HTML allow it. Control characters are not allowed in XML, and those that reverse the
/// direction of writing would let a name disguise itself: both become a visible replacement.
pub(in crate::present) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(' '),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {
                escaped.push('\u{fffd}')
            }
            _ if character.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// About how wide a text is, in the same unit as its size; rather too wide, since fonts differ.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    let share = |character: char| match character {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' => 0.32,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '/' => 0.4,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '—' | '…' => 0.92,
        'A'..='Z' | '&' => 0.72,
        _ if (character as u32) < 0x2e80 => 0.61,
        _ => 1.05,
    };
    text.chars().map(share).sum::<f64>() * size
}

/// The text, or as much of it as fits, ended by an ellipsis.
pub(super) fn shorten(text: &str, width: f64, size: f64) -> String {
    // No picture holds more, and a hostile name may be megabytes long.
    let text = shorten_to(text, 400);
    if text_width(&text, size) <= width {
        return text;
    }
    let mut short = String::new();
    for character in text.chars() {
        short.push(character);
        if text_width(&short, size) + 0.92 * size > width {
            short.pop();
            break;
        }
    }
    format!("{}…", short.trim_end())
}

fn shorten_to(text: &str, characters_max: usize) -> String {
    match text.char_indices().nth(characters_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The text in lines of at most `width`, broken at blanks; what does not fit into `lines_max` is cut off.
pub(super) fn wrap(text: &str, width: f64, size: f64, lines_max: usize) -> Vec<String> {
    let text = shorten_to(text, 400);
    let mut lines: Vec<String> = Vec::new();
    for word in words(&text) {
        let is_last_line = lines.len() == lines_max;
        match lines.last_mut() {
            // The last line takes all the rest, to be cut with an ellipsis.
            Some(line) if is_last_line || fits_after(line, &word, width, size) => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines.iter().map(|line| shorten(line, width, size)).collect()
}

/// The words of a text; a number and what follows it are one, so that `4 KiB` is never parted.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut after_number = false;
    for word in text.split_whitespace() {
        match words.last_mut() {
            Some(number) if after_number => *number += &format!(" {word}"),
            _ => words.push(word.to_owned()),
        }
        after_number = word.chars().all(|character| character.is_ascii_digit() || ".,".contains(character));
    }
    words
}

/// As `wrap`, with lines of about the same length: a last line of one word looks like a mistake.
fn wrap_evenly(text: &str, width: f64, size: f64, lines_max: usize) -> Vec<String> {
    let widest = wrap(text, width, size, lines_max);
    let narrower =
        (10..20).map(|twentieths| wrap(text, width * f64::from(twentieths) / 20.0, size, lines_max));
    let is_whole =
        |lines: &Vec<String>| lines.len() == widest.len() && !lines.iter().any(|line| line.ends_with('…'));
    narrower.into_iter().find(is_whole).unwrap_or(widest.clone())
}

fn fits_after(line: &str, word: &str, width: f64, size: f64) -> bool {
    text_width(line, size) + text_width(" ", size) + text_width(word, size) <= width
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Names that break careless writers.
    pub(crate) const HOSTILE: [&str; 6] = [
        "<script>alert(1)</script>",
        "\" onload=\"alert(1)",
        "' & ]]> <!-- &amp; &#0;",
        "\u{0}\u{8}\u{1b}[31m\u{202e}desrever\u{ffff}",
        "</text></svg><img src=x>",
        "\n\t",
    ];

    /// Fails unless tags are balanced, attributes are quoted, entities are known, and numbers are numbers.
    pub(crate) fn assert_well_formed(svg: &str) {
        assert_eq!(first_fault(svg), None, "{}", svg.chars().take(3_000).collect::<String>());
    }

    /// Checks the part of XML that this crate writes; None if it is well-formed.
    fn first_fault(svg: &str) -> Option<String> {
        for word in ["NaN", "inf\"", "inf ", "-inf"] {
            let in_markup = svg.split('<').filter_map(|part| part.split('>').next());
            if in_markup.into_iter().any(|tag| tag.contains(word)) {
                return Some(format!("{word} in the markup"));
            }
        }
        let mut open: Vec<&str> = Vec::new();
        for (index, part) in svg.split('<').enumerate() {
            if index == 0 {
                if !part.is_empty() {
                    return Some("text before the first element".to_owned());
                }
                continue;
            }
            let Some((tag, text)) = part.split_once('>') else { return Some(format!("unclosed tag {part}")) };
            if let Some(name) = tag.strip_prefix('/') {
                if open.pop() != Some(name) {
                    return Some(format!("unexpected </{name}>"));
                }
            } else {
                let name = tag.split([' ', '/']).next().unwrap_or("");
                if !["svg", "g", "path", "text", "title", "desc", "tspan"].contains(&name) {
                    return Some(format!("unknown element {name}"));
                }
                if let Some(fault) = attribute_fault(&tag[name.len()..]) {
                    return Some(fault);
                }
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
            if open.is_empty() && !text.trim().is_empty() {
                return Some("text outside the picture".to_owned());
            }
            let entities_are_known = text.split('&').skip(1).all(|rest| {
                ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|entity| rest.starts_with(entity))
            });
            if !entities_are_known
                || text.chars().any(|character| character.is_control() && character != '\n')
            {
                return Some(format!("text not escaped: {text}"));
            }
        }
        (!open.is_empty()).then(|| format!("never closed: {open:?}"))
    }

    fn attribute_fault(attributes: &str) -> Option<String> {
        let mut rest = attributes.trim_end_matches('/').trim();
        let mut names: Vec<&str> = Vec::new();
        while !rest.is_empty() {
            let Some((name, after)) = rest.split_once("=\"") else {
                return Some(format!("attribute {rest}"));
            };
            let Some((_, after)) = after.split_once('"') else { return Some(format!("open quote {rest}")) };
            let is_name =
                name.chars().all(|character| character.is_ascii_alphanumeric() || "-:".contains(character));
            if !is_name || names.contains(&name) || name.starts_with("on") {
                return Some(format!("attribute name {name}"));
            }
            names.push(name);
            rest = after.trim_start();
        }
        None
    }

    #[test]
    fn the_check_of_well_formedness_finds_every_kind_of_fault() {
        for faulty in [
            "<svg><g></svg>",
            "<svg><g></svg></g>",
            "<svg></svg></svg>",
            "<svg><text>&nbsp;</text></svg>",
            "<svg><text>a & b</text></svg>",
            "<svg><script></script></svg>",
            "<svg><path d=\"M0 NaN\"/></svg>",
            "<svg><path d=\"M0 inf\"/></svg>",
            "<svg><path d=M0/></svg>",
            "<svg><path d=\"M0\" d=\"M0\"/></svg>",
            "<svg><path onload=\"x\"/></svg>",
            "<svg><text>\u{1b}</text></svg>",
            "<svg></svg>rest",
            "<svg",
        ] {
            assert!(first_fault(faulty).is_some(), "not found: {faulty}");
        }
        assert_eq!(first_fault("<svg a=\"1\"><text>a &amp; b</text><path d=\"M0 1\"/></svg>\n"), None);
    }

    #[test]
    fn hostile_text_stays_text() {
        for text in HOSTILE {
            let mut svg = Svg::new();
            svg.heading(text);
            svg.text("plot-tick", Anchor::Middle, (1.0, 2.0), text);
            svg.path_with_tip("plot-line", &Path::rectangle(0.0, 0.0, 1.0, 1.0), text);
            assert_well_formed(&svg.finish(10.0, text, text));
        }
    }

    #[test]
    fn coordinates_have_one_decimal_at_most() {
        let table = [
            (0.0, "0"),
            (-0.04, "0"),
            (0.25, ".3"),
            (-0.5, "-.5"),
            (12.0, "12"),
            (12.34, "12.3"),
            (-7.0, "-7"),
        ];
        for (value, expected) in table {
            assert_eq!(number(value), expected);
        }
        assert_eq!(number(f64::NAN), "0");
        assert_eq!(number(f64::INFINITY), "1000000");
    }

    #[test]
    fn a_path_joins_straight_steps_and_never_drifts() {
        let mut path = Path::default();
        path.move_to(0.0, 0.0);
        (1..=1_000).for_each(|step| path.line_to(f64::from(step) * 0.13, 5.0));
        path.line_to(130.0, 8.0);
        assert_eq!(path.finish().text, "M0 0l.1 5h129.9v3");
        let mut turning = Path::default();
        turning.move_to(101.0, 101.0);
        [105.0, 103.0].into_iter().for_each(|x| turning.line_to(x, 101.0));
        turning.line_to(103.0, 105.0);
        turning.close();
        turning.move_to(102.0, 102.0);
        assert_eq!(turning.finish().text, "M101 101h4h-2v4zm1 1");
        let mut drifting = Path::default();
        drifting.move_to(0.0, 0.0);
        (1..=1_000).for_each(|step| drifting.line_to(f64::from(step) * 0.33, f64::from(step % 2)));
        let drifting = drifting.finish();
        assert_eq!(drifting.pen, (3_300, 0));
    }

    #[test]
    fn long_text_is_cut_to_its_room() {
        let long = "a very long name ".repeat(1_000);
        for width in [40.0, 100.0, 300.0] {
            let short = shorten(&long, width, 12.0);
            assert!(short.ends_with('…') && text_width(&short, 12.0) <= width, "{short}");
        }
        assert_eq!(shorten("short", 100.0, 12.0), "short");
        let lines = wrap(&long, 200.0, 12.0, 2);
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| text_width(line, 12.0) <= 200.0) && lines[1].ends_with('…'));
        assert_eq!(wrap("", 200.0, 12.0, 2), Vec::<String>::new());
        assert_eq!(words("99.9 % of 4 KiB reads"), ["99.9 %", "of", "4 KiB", "reads"]);
        let title = "a title that is just one word too long";
        let too_narrow = text_width(title, 12.0) - 1.0;
        assert_eq!(wrap(title, too_narrow, 12.0, 2)[1], "long");
        assert_eq!(wrap_evenly(title, too_narrow, 12.0, 2)[1], "one word too long");
    }
}
