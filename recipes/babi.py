"""A memory network (MemN2N) on bAbI task 1, "single supporting fact", as in HyperSched (SoCC'19), section 6.3.3.

    gpusched run babi.yaml                               # the search, on CPU cores
    python babi.py --optimizer adam --max-steps 120      # one configuration alone

    Mary moved to the bathroom. John went to the hallway. Where is Mary?   ->   bathroom

The task's text is so regular that the script makes its own, in bAbI's format and with its words. ``data`` may name the
folder of the real files instead.
"""

import random
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import gpusched

DEFAULTS = {
    "optimizer": "rmsprop",  # adam, sgd
    "state": 32,
    "embedding": 64,
    "dropout": 0.3,
    "data": "made",  # or the folder of the real files
    "questions": 1000,  # to train on, in the made text; as many as bAbI's "en" has
}
FILES = ("qa1_single-supporting-fact_train.txt", "qa1_single-supporting-fact_test.txt")
PEOPLE = ("Mary", "John", "Daniel", "Sandra")
PLACES = ("bathroom", "hallway", "garden", "office", "bedroom", "kitchen")
MOVES = ("moved to", "went to", "went back to", "journeyed to", "travelled to")
QUESTIONS_A_STORY = 5
OPTIMIZERS = {
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, alpha=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
}


def make_text(questions, seed):
    """Stories of people who walk about, in bAbI's format: two moves, then a question, five times a story."""
    chance = random.Random(seed)
    lines = []
    while questions > 0:
        where = {}
        moved_at = {}
        number = 0
        for _ in range(min(questions, QUESTIONS_A_STORY)):
            for _ in range(2):
                number += 1
                person = chance.choice(PEOPLE)
                place = chance.choice([name for name in PLACES if name != where.get(person)])
                where[person], moved_at[person] = place, number
                lines.append(f"{number} {person} {chance.choice(MOVES)} the {place}.")
            number += 1
            person = chance.choice(sorted(where))
            lines.append(f"{number} Where is {person}? \t{where[person]}\t{moved_at[person]}")
        questions -= QUESTIONS_A_STORY
    return "\n".join(lines) + "\n"


def read_questions(text):
    """(sentences so far, question, answer) for each question of a text in bAbI's format; sentences as lists of words.

    Raises ValueError where there are none.
    """
    found, story = [], []
    for line in text.splitlines():
        number, _, rest = line.partition(" ")
        if number == "1":
            story = []
        if "\t" in rest:
            question, answer, _ = rest.split("\t")
            found.append((tuple(story), words(question), answer.lower()))
        else:
            story.append(words(rest))
    if not found:
        raise ValueError("it asks nothing")
    return found


def words(sentence):
    """Return the words and signs of a text, in lower case."""
    return re.findall(r"\w+|[.?]", sentence.lower())


def read_data(hp):
    """Training and test questions; where there are none, the script ends with what to do about it."""
    if hp.data == "made":
        return [read_questions(make_text(hp.questions, 1)), read_questions(make_text(1000, 2))]
    folder = (Path(__file__).parent / Path(hp.data).expanduser()).resolve()
    parts = []
    for path in (folder / name for name in FILES):
        try:
            parts.append(read_questions(path.read_text()))
        except FileNotFoundError:
            raise SystemExit(
                f"There is no {path}: get bAbI tasks 1-20 (v1.2) from https://research.facebook.com/downloads/babi/, "
                "unpack them, and give the folder en or en-10k: with gpusched run, --set space.data=FOLDER; with "
                "the script alone, --data FOLDER. Or leave it out: the script then makes its own text."
            ) from None
        except ValueError as error:
            raise SystemExit(f"{path} is not in bAbI's format: {error}.") from None
    return parts


def shape_of(questions):
    """Most sentences a story, words a sentence, words a question."""
    return (
        max(len(story) for story, _, _ in questions),
        max(len(sentence) for story, _, _ in questions for sentence in story),
        max(len(question) for _, question, _ in questions),
    )


class Questions:
    """Questions as tensors: stories (N, sentences, words), questions (N, words), answers (N); 0 stands for no word.

    Stories end at the same place: the last sentence is the newest.
    """

    def __init__(self, questions, vocabulary, shape, device):
        sentences, sentence_words, question_words = shape
        number = {word: place for place, word in enumerate(vocabulary, start=1)}

        def row(text, length):
            return [number[word] for word in text] + [0] * (length - len(text))

        nothing = [0] * sentence_words
        stories = [
            [nothing] * (sentences - len(story)) + [row(text, sentence_words) for text in story]
            for story, _, _ in questions
        ]
        asked = [row(question, question_words) for _, question, _ in questions]
        answers = [number[answer] for _, _, answer in questions]
        self.stories, self.questions, self.answers = (
            torch.tensor(rows, device=device) for rows in (stories, asked, answers)
        )

    def __len__(self):
        return len(self.answers)

    def batch(self, numbers):
        return self.stories[numbers], self.questions[numbers], self.answers[numbers]


def tensors(hp, device):
    """Return the questions to train on and to test with, the number of words, and the shape of a story."""
    parts = read_data(hp)
    both = [question for part in parts for question in part]
    texts = (text for story, asked, answer in both for text in (*story, asked, [answer]))
    vocabulary = sorted({word for text in texts for word in text})
    shape = shape_of(both)
    return [Questions(part, vocabulary, shape, device) for part in parts], len(vocabulary), shape


class MemoryNetwork(nn.Module):
    """One hop of MemN2N. A sentence is the sum of its words and of its age, once as a key and once as a value."""

    def __init__(self, vocabulary, shape, embedding, state, dropout):
        super().__init__()
        sentences, _, _ = shape
        self.key, self.value, self.asked = (
            nn.Embedding(vocabulary + 1, embedding, padding_idx=0) for _ in range(3)
        )
        self.key_age, self.value_age = (
            nn.Parameter(0.1 * torch.randn(sentences, embedding)) for _ in range(2)
        )
        for table in (self.key, self.value, self.asked):
            nn.init.normal_(table.weight[1:], std=0.1)
        self.reader = nn.LSTM(2 * embedding, state, batch_first=True)
        self.answer = nn.Linear(state, vocabulary + 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stories, questions):
        keys = self.dropout(self.key(stories).sum(2) + self.key_age)
        values = self.dropout(self.value(stories).sum(2) + self.value_age)
        asked = self.dropout(self.asked(questions))
        attention = torch.softmax(asked @ keys.transpose(1, 2), dim=2)  # (N, words, sentences)
        _, (state, _) = self.reader(torch.cat([attention @ values, asked], dim=2))
        return self.answer(self.dropout(state[-1]))


def train(trial, model, questions, loader, optimizer):
    """One epoch; the mean loss over all ranks."""
    model.train()
    total, seen = 0.0, 0
    for numbers in loader:
        stories, asked, answers = questions.batch(numbers)
        loss = F.cross_entropy(model(stories, asked), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(numbers)
        seen += len(numbers)
    return trial.mean(total, seen)


@torch.no_grad()
def accuracy(trial, net, questions, loader):
    """The share of questions answered rightly."""
    net.eval()
    right = seen = 0
    for numbers in loader:
        stories, asked, answers = questions.batch(numbers)
        right += (net(stories, asked).argmax(1) == answers).sum().item()
        seen += len(numbers)
    return trial.mean(right, seen)


def main():
    trial = gpusched.init(DEFAULTS)
    hp = trial.hparams
    if hp.optimizer not in OPTIMIZERS:
        raise SystemExit(f"optimizer: {hp.optimizer!r} is not one of {', '.join(OPTIMIZERS)}")
    (training, testing), vocabulary, shape = tensors(hp, trial.device)

    net = MemoryNetwork(vocabulary, shape, hp.embedding, hp.state, hp.dropout)
    model = trial.wrap(net)
    optimizer = OPTIMIZERS[hp.optimizer](model.parameters())
    trial.scale_lr(optimizer)
    numbers = trial.loader(range(len(training)), batch_size=32)
    test_numbers = trial.eval_loader(range(len(testing)))
    trial.track(model=model, optimizer=optimizer)

    for _ in trial.steps():
        loss = train(trial, model, training, numbers, optimizer)
        trial.report(accuracy=accuracy(trial, net, testing, test_numbers), loss=loss)


if __name__ == "__main__":
    main()
