"""Free-form chat in our own wording, without documents: little in the answer can be copied from the prompt."""

from recipe import Recipe


def ask(name, *turns):
    """Return the recipe of a conversation whose turns alternate, the user first."""
    roles = ("user", "assistant")
    return Recipe(f"chat/{name}", tuple((roles[i % 2], turn) for i, turn in enumerate(turns)), 256)


RECIPES = (
    ask(
        "bicycle",
        "My bicycle chain keeps slipping when I push hard on a hill. What could be wrong, and what should "
        "I look at first?",
    ),
    ask(
        "short_story",
        "Write a short story, about two hundred words, in which a lighthouse keeper receives a letter "
        "that was meant for somebody else.",
    ),
    ask("sourdough", "Explain to a beginner why sourdough bread rises although no yeast is added from a packet."),
    ask(
        "interview",
        "I have a job interview tomorrow for a position as a school librarian. Give me five questions "
        "they may ask and a sentence of advice for each.",
    ),
    ask(
        "moon",
        "Why do we always see the same side of the moon? Please explain it the way you would to a curious "
        "ten-year-old.",
    ),
    ask(
        "weekend",
        "I'm visiting a small town by the sea in November with two children, and rain is forecast. "
        "How would you spend the weekend?",
        "I'd plan one indoor thing and one short outdoor thing for each day. Do you have a car, and how old are the "
        "children?",
        "No car, but there is a bus every hour. They are four and nine, and the older one loves animals.",
    ),
    ask(
        "argument",
        "Make the best case you can for and against a four-day working week, and then say which side "
        "you find more convincing.",
    ),
    ask(
        "poem",
        "Write a poem of four stanzas about the first frost in a vegetable garden. It should rhyme, and it "
        "should not be gloomy.",
    ),
    ask(
        "memory",
        "What is the difference between a process and a thread, and when would a programmer choose one over the other?",
        "A process has its own memory; threads share the memory of one process. Threads are cheaper to start and to "
        "switch between, processes protect each other from crashes.",
        "Then why do web servers so often use several processes? Wouldn't threads always be the lighter choice?",
    ),
    ask(
        "apology",
        "Help me write a friendly message to my neighbour. Our dog dug up her tulips this morning, and "
        "I would like to apologise and offer to plant new ones.",
    ),
)
