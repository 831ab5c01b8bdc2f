"""Control tags: how long an answer is beside the longest of its prompt, by hand."""

from rl4llm.rewards.control_tags import _part_of_longest


def test_lengths_are_parts_of_the_longest_answer_of_a_prompt():
    prompts = ['a', 'b', 'a', 'a', 'c']
    assert _part_of_longest([4, 1, 0, 2, 0], prompts) == [1, 1, 0, 0.5, 0]
